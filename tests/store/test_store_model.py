"""A store under any sequence of commands does what a dictionary would."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from store_helpers import tiny, written

from tracekit.errors import NameTakenError, UnknownRunError
from tracekit.store import Store

NAMES = st.sampled_from(["one", "two", "three"])
CONTENTS = st.sampled_from(["d1", "d2", "d3"])


class Commands(RuleBasedStateMachine):
    """`runs` is the model: by content, the name, the options and the number of GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder / "store")
        self.runs: dict[str, tuple[str, str, int]] = {}

    def taken(self, name: str | None, content: str | None) -> bool:
        return any(run[0] == name and other != content for other, run in self.runs.items())

    @rule(
        content=CONTENTS,
        options=st.sampled_from("xy"),
        name=st.none() | NAMES,
        gpus=st.integers(1, 3),
    )
    def add(self, content, options, name, gpus):
        request = {"digest": content, "options": options, "name": name}
        request |= {"default_name": f"by {content}", "labels": {}}
        request |= {"make": written(tiny(gpus), content, ["f"]), "summarise": lambda _: {}}
        if self.taken(name, content):
            with pytest.raises(NameTakenError):
                self.store.add(**request)
            return
        old = self.runs.get(content)
        new = old is None or old[1] != options
        record, made = self.store.add(**request)
        assert made == new
        self.runs[content] = (
            name or (old[0] if old else f"by {content}"),
            options,
            gpus if new else old[2],
        )
        assert record.name == self.runs[content][0]

    @rule(content=CONTENTS, name=NAMES)
    def rename(self, content, name):
        if content not in self.runs:
            with pytest.raises(UnknownRunError):
                self.store.rename("nobody", name)
        elif self.taken(name, content):
            with pytest.raises(NameTakenError):
                self.store.rename(self.runs[content][0], name)
        else:
            self.store.rename(self.runs[content][0], name)
            self.runs[content] = (name, *self.runs[content][1:])

    @rule(content=CONTENTS)
    def remove(self, content):
        if content in self.runs:
            assert self.store.remove(self.runs.pop(content)[0]).digest == content

    @invariant()
    def the_store_is_what_the_model_says(self):
        records = self.store.runs()
        assert [record.digest for record in records] == list(self.runs)
        assert {
            record.digest: (
                record.name, record.options, self.store.open(record).read("devices").height
            )
            for record in records
        } == self.runs  # fmt: skip
        if records:
            assert len(list(self.store.root.glob("runs/*"))) == len(records)
            assert list(self.store.root.glob("staging/*")) == []

    def teardown(self):
        shutil.rmtree(self.folder)


TestCommands = Commands.TestCase
TestCommands.settings = settings(max_examples=examples(15), stateful_step_count=12, deadline=None)
