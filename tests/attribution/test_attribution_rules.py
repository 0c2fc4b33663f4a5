"""Rules files: what they may hold, how they combine, and what is said of a wrong one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from trace_builder import TraceBuilder, stages, steps

from tracekit.attribution import Rules
from tracekit.attribution._names import classify_ranges
from tracekit.errors import RuleError, UsageError

Write = Callable[[str], Path]
"""Makes a rules file of a text."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(text: str) -> Path:
        path = tmp_path / "my rules.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return file


def _stage(name: str, rules: Rules) -> str | None:
    frame = pl.DataFrame({"name": [name], "domain": [None]}, schema_overrides={"domain": pl.String})
    stage: str | None = classify_ranges(frame, rules)["stage"].item()
    return stage


# What a file does.


def test_a_users_rules_come_first(write: Write) -> None:
    rules = Rules.load(
        write(
            """
            version = 1
            [[range]]
            name = '^forward$'
            stage = "BP"
            [[range]]
            name = 'custom'
            stage = "IO"
            [[range]]
            name = '^aten::'
            stage = "FP"
            [[range]]
            name = 'optimizer'
            ignore = true
            """
        )
    )
    assert _stage("forward", rules) == "BP"
    assert _stage("forward pass", rules) == "FP"
    assert _stage("my custom range", rules) == "IO"
    assert _stage("custom forward", rules) == "IO"
    assert _stage("aten::mm", rules) == "FP"
    assert _stage("optimizer", rules) is None
    assert _stage("zero_grad", rules) == "WU"


def test_of_two_rules_the_first_wins(write: Write) -> None:
    rules = Rules.load(
        write(
            """
            [[range]]
            name = 'a'
            stage = "BP"
            [[range]]
            name = 'ab'
            stage = "IO"
            """
        )
    )
    assert _stage("ab", rules) == "BP"


def test_all_patterns_of_an_entry_must_match(write: Write) -> None:
    rules = Rules.load(
        write("replace = true\n[[range]]\nname = 'x'\ndomain = 'mine'\nstage = 'FP'\n")
    )
    frame = pl.DataFrame({"name": ["x", "x", "y", None], "domain": ["mine", None, "mine", "mine"]})
    assert classify_ranges(frame, rules)["stage"].to_list() == ["FP", None, None, None]


def test_a_file_may_stand_alone(write: Write) -> None:
    rules = Rules.load(write("replace = true\n[[range]]\nname = '^go$'\nstage = 'FP'\n"))
    builder = TraceBuilder()
    builder.range(0, 10, "go")
    builder.range(10, 20, "backward")
    builder.range(20, 30, "step 3")
    builder.op("in go", 5)
    builder.op("in backward", 15)
    builder.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 25)
    builder.op("copy", 26, kind="p2p")
    trace = builder.attributed(rules)
    assert stages(trace) == {
        "in go": ("FP", "nvtx"),
        "in backward": ("OTHER", "none"),
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": ("OTHER", "none"),
        "copy": ("OTHER", "none"),
    }
    assert steps(trace) == []


def test_every_list_can_be_extended(write: Write) -> None:
    rules = Rules.load(
        write(
            """
            [[autograd]]
            name = '^grad of '
            [[thread]]
            name = '^reader'
            stage = "IO"
            [[thread]]
            name = '^engine'
            autograd = true
            [[collective]]
            kernel = 'my_ring'
            collective = "all_reduce"
            [[collective]]
            kernel = 'mine_too'
            collective = "send_recv"
            [[exchange]]
            collective = ["send_recv"]
            kind = ["collective"]
            stage = "BP"
            [[exchange]]
            kind = ["d2d"]
            stage = "WU"
            [[kernel]]
            name = '^softmax'
            stage = "FP"
            [[copy]]
            kind = ["d2h"]
            min_bytes = 8
            stage = "ME"
            [[iteration]]
            name = '^round ([0-9]+)'
            """
        )
    )
    builder = TraceBuilder()
    builder.thread(2, "reader 1")
    builder.thread(3, "engine")
    builder.range(0, 100, "round 7")
    builder.range(10, 20, "grad of mul")
    builder.range(30, 40, "backward")
    builder.op("marked", 15)
    builder.op("read", 15, thread=2)
    builder.op("engine", 35, thread=3)
    builder.op("my_ring", 50)
    builder.op("mine_too", 51)
    builder.op("local copy", 52, kind="d2d")
    builder.op("softmax", 53)
    builder.op("result", 54, kind="d2h", bytes=8)
    builder.op("flag", 55, kind="d2h", bytes=7)
    trace = builder.attributed(rules)
    assert stages(trace) == {
        "marked": ("BP", "autograd"),
        "read": ("IO", "thread_name"),
        "engine": ("BP", "backward_thread"),
        "my_ring": ("WU", "gradient_exchange"),
        "mine_too": ("BP", "gradient_exchange"),
        "local copy": ("WU", "gradient_exchange"),
        "softmax": ("FP", "kernel_name"),
        "result": ("ME", "copy_kind"),
        "flag": ("OTHER", "none"),
    }
    assert steps(trace) == [(0, 7, 0, 100)]


def test_an_exchange_or_a_copy_may_be_none(write: Write) -> None:
    # This job's all_reduce is tensor parallelism, and its large copies are no input.
    rules = Rules.load(
        write(
            """
            [[exchange]]
            collective = ["all_reduce"]
            ignore = true
            [[copy]]
            kind = ["h2d"]
            ignore = true
            """
        )
    )
    builder = TraceBuilder()
    builder.range(0, 10, "forward")
    builder.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5)
    builder.op("ncclDevKernel_AllGather_RING_LL", 6)
    builder.op("HtoD", 20, kind="h2d", bytes=1 << 20)
    assert stages(builder.attributed(rules)) == {
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL": ("FP", "nvtx"),
        "ncclDevKernel_AllGather_RING_LL": ("WU", "gradient_exchange"),
        "HtoD": ("OTHER", "none"),
    }


def test_an_iteration_pattern_takes_the_place_of_all_others(write: Write) -> None:
    rules = Rules.load(write("[[iteration]]\nname = '^round'\n"), r"^forward (\d)")
    assert [entry["name"] for entry in rules["iteration"]] == [r"^forward (\d)"]
    builder = TraceBuilder()
    for number, name in enumerate(("round 1", "step 1", "forward 3", "forward 4")):
        builder.range(10 * number, 10 * number + 9, name)
    assert steps(builder.attributed(rules)) == [(0, 3, 20, 29), (0, 4, 30, 39)]


def test_the_same_rules_have_the_same_text(write: Write) -> None:
    plain = Rules.load()
    assert plain.canonical() == Rules.load().canonical()
    nothing = Rules.load(write("# only this comment\nversion = 1\n"))
    assert nothing.canonical() == plain.canonical()
    first = Rules.load(write("[[range]]\nname = 'a'\nstage = 'FP'\n")).canonical()
    second = Rules.load(write("[[range]]\n# why\nstage = 'FP'\nname = 'a'\n")).canonical()
    assert first == second != plain.canonical()
    assert Rules.load(iteration="x").canonical() != plain.canonical()


# What is refused.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[range]\n", "is not TOML"),
        ("version = 2\n", "has version 2: this tracekit reads 1"),
        ("version = '1'\n", "has version 1: this tracekit reads 1"),
        ("replace = 'no'\n", "replace is 'no': write true or false"),
        ("[[ranges]]\nname = 'a'\n", "has an unknown list 'ranges': there are range, "),
        ("[range]\nname = 'a'\n", "'range' in {file} is not a list: write [[range]]"),
        ("range = 3\n", "'range' in {file} is not a list"),
        ("range = [3]\n", "'range' in {file} is not a list"),
    ],
)
def test_a_wrong_file(write: Write, text: str, said: str) -> None:
    path = write(text)
    with pytest.raises(RuleError, match=re.escape(said.format(file=path))) as caught:
        Rules.load(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    ("list_", "entry", "said"),
    [
        ("range", "nam = 'a'", "has an unknown key 'nam': known are domain, ignore, name, stage"),
        ("range", "name = 'a'\nautograd = true", "has an unknown key 'autograd'"),
        ("range", "name = 'a'", "has no outcome: give stage or ignore"),
        ("range", "stage = 'FP'", "matches nothing: give name or domain"),
        ("range", "name = 'a'\nstage = 'fp'", "no stage 'fp': there are FP, BP, WU, IO, ME, OTHER"),
        ("range", "name = 'a'\nstage = ['FP']", "no stage ['FP']"),
        ("range", "name = 3\nstage = 'FP'", "3 is not a pattern"),
        ("range", "name = '('\nstage = 'FP'", "'(' is not a regular expression"),
        ("range", "name = 'a'\nstage = 'FP'\ndomain = '['", "'[' is not a regular expression"),
        ("range", "name = '(?<!x)a'\nstage = 'FP'", "look-around"),
        ("range", "name = 'a(?=b)'\nstage = 'FP'", "look-around"),
        ("range", "name = '(a)\\1'\nstage = 'FP'", "backreferences"),
        ("range", "name = 'a{1000}{1000}{9}'\nstage = 'FP'", "is not a regular expression"),
        ("range", "name = 'a'\nignore = 'no'", "ignore is 'no': write true or false"),
        ("range", "name = 'a'\nignore = false", "has no outcome"),
        ("thread", "name = 'a'\nautograd = 1", "autograd is 1: write true or false"),
        ("thread", "name = 'a'", "has no outcome: give stage or autograd"),
        ("autograd", "stage = 'BP'", "has an unknown key 'stage'"),
        ("autograd", "", "matches nothing: give name"),
        ("collective", "kernel = 'a'\ncollective = 'allreduce'", "no collective 'allreduce'"),
        ("collective", "kernel = 'a'", "has no outcome: give collective or ignore"),
        ("exchange", "stage = 'WU'", "matches nothing: give collective or kind"),
        ("exchange", "kind = ['p2p']", "has no outcome: give stage or ignore"),
        ("exchange", "kind = 'p2p'\nstage = 'WU'", "kind is 'p2p': list some of compute, "),
        ("exchange", "kind = ['peer']\nstage = 'WU'", "kind is ['peer']: list some of"),
        ("exchange", "kind = [['p2p']]\nstage = 'WU'", "kind is [['p2p']]: list some of"),
        ("exchange", "kind = []\nstage = 'WU'", "kind is []: list some of"),
        ("copy", "kind = ['h2d']\nmin_bytes = -1\nstage = 'IO'", "min_bytes is -1: give a number"),
        ("copy", "kind = ['h2d']\nmin_bytes = 1.5\nstage = 'IO'", "min_bytes is 1.5"),
        ("copy", "kind = ['h2d']\nmin_bytes = true\nstage = 'IO'", "min_bytes is True"),
        ("copy", "min_bytes = 8\nstage = 'IO'", "matches nothing: give kind"),
        ("iteration", "name = 'a'\nany_stage = true", "has an unknown key 'any_stage'"),
    ],
)
def test_a_wrong_entry(write: Write, list_: str, entry: str, said: str) -> None:
    good = {
        "exchange": "kind = ['p2p']\nstage = 'WU'",
        "copy": "kind = ['h2d']\nstage = 'IO'",
        "collective": "kernel = 'x'\ncollective = 'reduce'",
        "thread": "name = 'x'\nstage = 'IO'",
        "autograd": "name = 'x'",
        "iteration": "name = 'x'",
        "range": "name = 'x'\nstage = 'FP'",
    }[list_]
    path = write(f"[[{list_}]]\n{good}\n[[{list_}]]\n{entry}\n")
    with pytest.raises(RuleError, match=re.escape(said)) as caught:
        Rules.load(path)
    assert f"[[{list_}]] entry 2 of {path}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(RuleError, match=f"rules file {re.escape(str(path))} cannot be read"):
            Rules.load(path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleError, match="is not TOML"):
        Rules.load(binary)


def test_a_wrong_iteration_pattern() -> None:
    with pytest.raises(RuleError, match=r"--iteration: '\(' is not a regular expression"):
        Rules.load(iteration="(")
    with pytest.raises(RuleError, match="look-around"):
        Rules.load(iteration=r"step (?!0)\d+")


def test_no_pattern_takes_long(write: Write) -> None:
    rules = Rules.load(
        write("replace = true\n[[range]]\nname = '^(([a-z])+.)+[A-Z]([a-z])+$'\nstage = 'FP'\n"),
        "^(a*)*$",
    )
    builder = TraceBuilder()
    builder.range(0, 10, "a" * 5000)
    began = time.monotonic()
    builder.attributed(rules)
    assert time.monotonic() - began < 5


def test_the_default_rules_say_what_each_list_is_for() -> None:
    rules = Rules.load()
    for name, entries in rules.lists.items():
        assert entries, name
        assert len({str(entry) for entry in entries}) == len(entries), name
