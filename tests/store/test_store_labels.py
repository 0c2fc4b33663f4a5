"""Labels of runs: those that users give, and those that traces bring along."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from store_helpers import add, left_over, tiny

from tracekit.errors import UsageError
from tracekit.store import Made, Store
from tracekit.support.labels import MOST


def made(*labels: dict[str, str], content: str = "aa") -> dict[str, Any]:
    """What makes a run of reports whose programs gave it labels."""

    def make(folder: Path) -> Made:
        tiny().write(folder / "0")
        for index in range(1, len(labels)):
            shutil.copytree(folder / "0", folder / str(index))
        files = tuple(f"{index}.sqlite" for index in range(len(labels)))
        return Made(content, files, ((),) * len(labels), labels=labels)

    return {"content": content, "files": ["a"] * len(labels), "make": make}


def unclear(warnings: tuple[str, ...]) -> list[str]:
    return [text for text in warnings if "disagree" in text]


def test_a_run_has_the_labels_of_its_trace_and_of_its_user_who_wins(store):
    given = {"batch": "32", "by": "me"}
    record, _ = add(store, labels=given, **made({"batch": "16", "network": "lenet"}))
    assert record.labels == {"batch": "32", "network": "lenet", "by": "me"}
    assert store.runs({"network": "lenet", "batch": "32"}) == [record]
    assert store.runs({"batch": "16"}) == []
    assert unclear(record.warnings) == []


def test_reports_that_disagree_give_no_label(store):
    reports = ({"batch": "16", "rank": "0"}, {"rank": "1", "batch": "16", "late": "yes"}, {})
    record, _ = add(store, **made(*reports))
    assert record.labels == {"batch": "16", "late": "yes"}
    what = "the reports disagree on the label 'rank', so it is left out"
    assert unclear(record.warnings) == [what]


def test_nothing_is_said_of_a_label_that_the_user_gives(store):
    record, _ = add(store, labels={"rank": "all"}, **made({"rank": "0"}, {"rank": "1"}))
    assert record.labels == {"rank": "all"}
    assert unclear(record.warnings) == []


def test_labels_of_the_user_outlast_a_run_that_is_made_anew(store):
    add(store, labels={"batch": "32"}, **made({"batch": "16"}))
    again, is_new = add(store, options='{"x":1}', **made({"batch": "16", "gpus": "4"}))
    assert is_new
    assert again.labels == {"gpus": "4", "batch": "32"}


@pytest.mark.slow
def test_many_reports_give_no_more_labels_than_one(store):
    reports = [{f"key{number}": "x"} for number in range(MOST + 20)]
    record, _ = add(store, **made(*reports))
    assert list(record.labels) == [f"key{number}" for number in range(MOST)]


@pytest.mark.parametrize(
    ("key", "value"),
    [("", "x"), (" ", "x"), ("a", "b\nc"), ("a\0", "b"), ("a", "x" * 201), ("a=b", "c")],
)
def test_labels_that_no_run_may_have(tmp_path, key, value):
    store = Store(tmp_path / "store")
    with pytest.raises(UsageError, match=r"^the label .* (has|is)"):
        add(store, labels={"fine": "yes", key: value})
    assert left_over(store) == []
    assert not store.root.exists()
