"""``docs/evidence/reliability.md``, of what ``benchmarks/reliability.py`` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Results = Mapping[str, Any]

HEAD = """\
# Reliability tests

`benchmarks/reliability.py` writes this page. The script stops with an error at a wrong number, a traceback, a hang, a changed
input file or a leftover file, so the tables count none of these. [store.md](../store.md) lists the guarantees of the store.
"""
MIB = 1 << 20


def page(results: Results) -> str:
    """Return the page; parts that were not run have no section."""
    sections = {
        "inputs": _inputs, "tests": _tests, "kills": _kills, "interrupts": _interrupts,
        "memory": _memory, "long": _long, "coverage": _coverage, "mutants": _mutants,
    }  # fmt: skip
    parts = [write(results[name]) for name, write in sections.items() if name in results]
    return "\n".join([HEAD, *("\n".join(part) for part in parts)])


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---', *['---:'] * (len(head) - 1)])} |"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def _section(title: str, date: str, words: str) -> Iterator[str]:
    yield f"## {title}\n\n{words} ({date})\n"


def _inputs(part: Results) -> Iterator[str]:
    words = (
        "Small files of each format were copied and damaged, each copy in another way: flipped bits; cut or swapped pages; rows, columns"
        " and tables that are changed, dropped, repeated or exchanged; wrong types; huge and negative numbers; ranges that cross,"
        " end before they begin, or never end; invalid UTF-8; views, triggers and computed columns. Text files get damaged lines and cells;"
        " matrices are damaged symmetrically, too.\n\nWhat tracekit reads from a damaged file is compared with independent readers"
        " in plain Python (`tests/sources/plain_readers.py`, `plain_texts.py`): times, ids, sizes and names of ops, calls and ranges;"
        " NVLinks, relations and NUMA nodes; ranks, rings, trees, connections and calls of NCCL. `not compared` counts"
        " files that the plain reader cannot read unambiguously, such as JSON with a repeated key."
    )
    yield from _section("Damaged files", part["date"], words)
    rows = [
        (each["format"], f"{each['cases']:,}", f"{each.get('right', 0):,}", f"{each.get('error', 0):,}",
         f"{each.get(LEFT_OPEN, 0):,}")
        for each in part["formats"]
    ]  # fmt: skip
    yield from _table(
        (
            "format",
            "damaged files",
            "read as by the plain reader",
            "refused with one clear error",
            "not compared",
        ),
        rows,
    )
    if part.get("peak_bytes"):  # which is not known of formats that were tried before
        yield f"The process that read them all held {part['peak_bytes'] / MIB:,.0f} MiB at most.\n"


LEFT_OPEN = "read, where the plain reader cannot"


def _tests(part: Results) -> Iterator[str]:
    yield from _section(
        "Tests of other faults", part["date"], "Number of tests that passed, by what they test."
    )
    yield from _table(
        ("tests of", "passed"), [(each["of"], each["passed"]) for each in part["groups"]]
    )


def _kills(part: Results) -> Iterator[str]:
    words = (
        "`benchmarks/kills.py` kills a command (SIGKILL) at a random moment. The folders `runs/` and"
        " `staging/` of tracekit's store also hold unrelated files. After each kill, the catalogue of runs is repaired if the kill left it incomplete."
        " It lists exactly the runs that existed before or that the command had completed, all tables of these runs"
        " can be read, and the unrelated files are unchanged. After every fifth kill, the command is repeated and succeeds, all files match"
        " their checksums, and nothing is left over."
    )
    yield from _section("Kills", part["date"], words)
    rows = [(each["command"], each["ended"], each["times"]) for each in part["moments"]]
    yield from _table(("command", "state after the signal", "times"), rows)


def _interrupts(part: Results) -> Iterator[str]:
    words = (
        "`benchmarks/interrupts.py` sends SIGINT to a command and its child processes, as Ctrl-C does on a terminal, at a random moment"
        " from its first line of code on. Every command that had not finished printed one line, `tracekit: interrupted`,"
        " and ended with exit code 130. Nothing was left in the store's `staging/` and no half-written page anywhere;"
        " all tables of all listed runs could be read. At the end, each command was repeated and succeeded."
        " `tests/recording/test_recording_perform.py` tests interrupts of a recording, moment by moment."
    )
    yield from _section("Interrupts", part["date"], words)
    rows = [(each["command"], each["ended"], each["times"]) for each in part["moments"]]
    yield from _table(("command", "state after the signal", "times"), rows)


def _memory(part: Results) -> Iterator[str]:
    words = "Peak memory of ingesting a generated export (`benchmarks/generate_export.py`), by its number of kernels and the limit given."
    yield from _section("Memory", part["date"], words)
    rows = [
        (f"{each['kernels']:,}", each["limit"], f"{each['peak_bytes'] / MIB:,.0f} MiB")
        for each in part["ingests"]
    ]
    yield from _table(("kernels", "`--memory`", "peak"), rows)


def _long(part: Results) -> Iterator[str]:
    words = "CPU seconds (best of three) for questions to a store with 1 and with 1,000 runs."
    yield from _section("Long use", part["date"], words)
    counts = list(part["seconds"])
    asked = list(part["seconds"][counts[0]])
    rows = [(what, *(f"{part['seconds'][count][what]:.3f}" for count in counts)) for what in asked]
    yield from _table(("seconds to", *(f"runs: {int(count):,}" for count in counts)), rows)
    analyses = part["analyses"]
    early, late = (f"{each / MIB:,.0f} MiB" for each in analyses["held_bytes"])
    number = analyses["number"]
    yield (
        f"To find memory leaks, one process opened a run and asked for its breakdown, its idle time and a SQL query, {number} times. Its resident memory was"
        f" {early} after {number // 4} rounds and {late} at the end.\n"
    )


def _coverage(part: Results) -> Iterator[str]:
    words = (
        "The table gives the share of branches and lines of `tracekit/` that the tests execute, including processes they start: commands, workers of an executor, annotated"
        " programs. Code that runs only compiled, or in an isolated Python (the supervisor of a recording), counts as not"
        " executed. The tests of the training programs, of most of the documentation and those marked nightly were not run."
    )
    yield from _section("Coverage", part["date"], words)
    rooms = {**part["rooms"], "**all**": part["all"]}
    rows = [(room, f"{s['branches']:.1%}", f"{s['lines']:.1%}") for room, s in rooms.items()]
    yield from _table(("folder of `tracekit/`", "branches", "lines"), rows)


def _mutants(part: Results) -> Iterator[str]:
    tried = sum(sum(each.values()) for each in part["rooms"].values())
    words = (
        f"To see whether the tests detect errors, `benchmarks/mutants.py` changes one operator, number, condition or method of the code at a time. Of {part['all']:,} possible changes, {part.get('asked', tried):,} were"
        f" drawn at random (seed {part['seed']}) and {tried:,} tried. Each ran against the tests of the packages that execute the changed line, and"
        " of the packages beside them. A failing test counts only if it passes without the change, after the same tests. Changes that"
        " cannot affect any answer are listed with the reason in `benchmarks/equivalent_mutants.toml`. The"
        " score is the detected share of all other changes. Changes for which a test was added after this run count as detected."
    )
    yield from _section("Mutants", part["date"], words)
    rows = [_scored(room, found) for room, found in sorted(part["rooms"].items())]
    whole: Counter[str] = sum((Counter(each) for each in part["rooms"].values()), Counter())
    head = ("folder", "tried", "detected", "equivalent", "not detected", "score")
    yield from _table(head, [*rows, _scored("**all**", whole)])
    if part["left"]:
        yield "Not detected:\n"
        yield "\n".join(f"- `{each}`" for each in part["left"]) + "\n"


def _scored(name: str, found: Mapping[str, int]) -> tuple[object, ...]:
    noticed, equal = found.get("killed", 0) + found.get("hung", 0), found.get("equivalent", 0)
    of = sum(found.values())
    return name, of, noticed, equal, of - noticed - equal, f"{noticed / max(1, of - equal):.0%}"
