"""Rules files: what they may hold, how they combine, and what is said of a wrong one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from trace_builder import TraceBuilder, stages, steps

from tracekit.attribution import Rules, _rules, attribute
from tracekit.attribution._names import RangeNames, classify_ranges
from tracekit.errors import RuleError, UsageError
from tracekit.model import Trace, combine
from tracekit.support.files import schemas

Write = Callable[[str], Path]
"""Makes a rules file of a text."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(text: str) -> Path:
        path = tmp_path / "my rules.toml"
        head = "" if "version" in text else "version = 1\n"
        path.write_text(head + text, encoding="utf-8")
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
        ("exchange", "stage = 'WU'", "matches nothing: give kernel or collective or kind"),
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
        ("range", "name = ''\nstage = 'FP'", "an empty pattern is found in every name: write"),
        ("range", "name = 'a'\ndomain = ''\nstage = 'FP'", "an empty pattern is found in every"),
        ("iteration", "name = ''", "an empty pattern is found in every name"),
        ("collective", "kernel = ''\nignore = true", "an empty pattern is found in every name"),
        ("range", "name = 'a'\nstage = 'FP'\nignore = true", "has both stage and ignore: leave"),
        ("exchange", "kind = ['p2p']\nstage = 'WU'\nignore = true", "has both stage and ignore"),
        (
            "collective",
            "kernel = 'a'\ncollective = 'reduce'\nignore = true",
            "has both collective and ignore",
        ),
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


@pytest.mark.parametrize("text", ["", "[[range]]\nname = 'a'\nstage = 'FP'\n", "replace = true"])
def test_a_file_without_version(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError, match=r"rules\.toml has no version: begin it with version = 1"):
        Rules.load(path)


def test_an_entry_may_say_that_it_is_not_ignored(write: Write) -> None:
    rules = Rules.load(write("[[range]]\nname = '^go$'\nstage = 'FP'\nignore = false\n"))
    assert _stage("go", rules) == "FP"


def test_a_wrong_iteration_pattern() -> None:
    with pytest.raises(RuleError, match="--iteration: an empty pattern is found in every name"):
        Rules.load(iteration="")
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
    began = time.process_time()
    builder.attributed(rules)
    assert time.process_time() - began < 5


def test_the_default_rules_are_those_of_a_file_without_fault() -> None:
    """Reading them checks none of their entries; reading the same file as a user's checks all."""
    read = Rules.load(schemas() / "stages" / "default.toml")
    default = Rules.load()
    assert {name: read[name][: read.given[name]] for name in read.lists} == default.lists
    assert {name: read[name][read.given[name] :] for name in read.lists} == default.lists


def test_the_default_rules_say_what_each_list_is_for() -> None:
    rules = Rules.load()
    for name, entries in rules.lists.items():
        assert entries, name
        assert len({str(entry) for entry in entries}) == len(entries), name


# What is said of entries that nothing matches.

ENTRIES = {
    "range": ("name = '^forward$'\nstage = 'BP'", "name = '^fwd$'\nstage = 'FP'"),
    "autograd": ("name = '^forward'", "name = '^grad of '"),
    "thread": ("name = '^main'\nstage = 'FP'", "name = '^reader'\nstage = 'IO'"),
    "collective": ("kernel = 'AllReduce'\nignore = true", "kernel = 'my_ring'\nignore = true"),
    "exchange": ("kind = ['p2p']\nstage = 'BP'", "kind = ['staged']\nstage = 'BP'"),
    "kernel": ("name = '^gemm'\nstage = 'BP'", "name = '^HtoD'\nstage = 'BP'"),
    "copy": ("kind = ['h2d']\nstage = 'IO'", "kind = ['h2d']\nmin_bytes = 101\nstage = 'IO'"),
    "iteration": ("name = '^step'", "name = '^round'"),
}


def _unmatched(trace: Trace) -> list[str]:
    return [text for text in trace.warnings if "matches" in text]


def _everything() -> TraceBuilder:
    builder = TraceBuilder()
    builder.thread(0, "main")
    builder.range(0, 90, "step 1")
    builder.range(10, 80, "forward, seq = 4")
    builder.op("gemm<float>", 20)
    builder.op("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 25)
    builder.op("HtoD", 30, kind="h2d", bytes=100)
    builder.op("PtoP", 35, kind="p2p", bytes=100)
    return builder


@pytest.mark.parametrize("list_", ENTRIES)
def test_entries_that_nothing_matches_are_said(list_: str, write: Write) -> None:
    used, unused = ENTRIES[list_]
    file = write(f"[[{list_}]]\n{used}\n[[{list_}]]\n{unused}\n")
    [warning] = _unmatched(_everything().attributed(Rules.load(file)))
    pattern = re.search(r"(name|kernel) = ('.*')", unused)
    shown = f" ({pattern[1]} {pattern[2]})" if pattern else ""
    assert warning == (
        f"nothing recorded matches [[{list_}]] entry 2{shown} of the rules file {file}"
    )


def test_nothing_is_said_of_default_rules_nor_of_those_that_are_matched(write: Write) -> None:
    used = "".join(f"[[{name}]]\n{entries[0]}\n" for name, entries in ENTRIES.items())
    assert _unmatched(_everything().attributed(Rules.load(write(used)))) == []
    # That an earlier entry decides makes the later one no mistake.
    twice = "[[range]]\nname = 'forward'\nstage = 'FP'\n" * 2
    assert _unmatched(_everything().attributed(Rules.load(write(twice)))) == []
    assert _unmatched(_everything().attributed()) == []


def test_rules_that_are_applied_later_are_judged_anew(write: Write) -> None:
    rules = Rules.load(write("[[range]]\nname = '^fwd$'\nstage = 'FP'\n[[thread]]\nname = 'x'\n"
                             "stage = 'IO'\n"))  # fmt: skip
    once = _everything().attributed(rules)
    first, second = _unmatched(once)
    assert "matches [[range]] entry 1 (name '^fwd$') of" in first
    assert "matches [[thread]] entry 1 (name 'x') of" in second
    assert _unmatched(attribute(once, Rules.load())) == []
    assert _unmatched(attribute(once, rules)) == [first, second]
    replaced = Rules.load(write("[[iteration]]\nname = '^round'\n"), "^step")
    assert _unmatched(_everything().attributed(replaced)) == []


def test_what_any_report_of_a_run_matches_is_matched(write: Write) -> None:
    rules = Rules.load(write("[[range]]\nname = '^fwd$'\nstage = 'FP'\n[[range]]\nname = 'first'\n"
                             "stage = 'FP'\n"))  # fmt: skip
    other = _everything()
    other.range(1, 9, "first rank")
    run = combine([other.attributed(rules), _everything().attributed(rules)])
    [warning] = [text for text in run.warnings if "matches" in text]
    assert warning.startswith("nothing recorded matches [[range]] entry 1 (name '^fwd$') of")


def test_names_that_came_before_mean_what_they_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rules, "_REMEMBERED", 4)
    seen: list[int] = []

    def look_up(names: pl.DataFrame) -> pl.DataFrame:
        seen.append(names.height)
        return names.with_columns(length=pl.col("name").str.len_chars())

    rules = Rules.load(iteration="whatever")
    for texts, looked_at in (
        (["a", None], [2]),
        (["bcd", None, "a"], [1]),
        (["a"], []),
        (["ef", "g"], [2]),  # more than are remembered
        (["a", "bcd"], [2]),
    ):
        seen.clear()
        names = pl.DataFrame({"name": texts})
        found = rules.meaning("length", names, look_up)
        assert found.columns == ["name", "length"]
        assert found["length"].to_list() == [each and len(each) for each in texts]
        assert seen == looked_at
    assert rules.meaning("other", pl.DataFrame({"name": ["a"]}), look_up).height == 1


def test_ranges_met_before_mean_what_they_mean_to_fresh_rules(write: Write) -> None:
    file = write('[[range]]\nname = "mine"\nstage = "ME"\n')
    ranges = pl.DataFrame(
        {"domain": [None, "DALI", None, None], "name": ["Forward pass", "Run", None, "mine 3"]},
        schema_overrides={"domain": pl.String},
    )
    known = Rules.load(file)
    for part in (ranges.head(1), ranges, ranges.reverse(), ranges.tail(2)):
        assert classify_ranges(part, known).equals(classify_ranges(part, Rules.load(file)))
        assert RangeNames(known).of(part).len() == part.height
