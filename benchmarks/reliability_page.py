"""``docs/evidence/reliability.md``, of what ``benchmarks/reliability.py`` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Results = Mapping[str, Any]

HEAD = """\
# Reliability tests

`benchmarks/reliability.py` writes this page. The script stops with an error if it meets a wrong number, a traceback, a hang, a
changed input file or a leftover file. So none of these occurred. [store.md](../store.md) lists the guarantees of the store.
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
        "Small files of each format were copied, and each copy was damaged in a random way:\n\n"
        "- in files: flipped bits, cut or swapped pages, invalid UTF-8;\n"
        "- in databases: rows, columns and tables that are changed, dropped, repeated or exchanged; wrong types; views,"
        " triggers and computed columns;\n"
        "- in values: huge and negative numbers; ranges that cross, end before they begin, or never end;\n"
        "- in text files: damaged lines and cells; in matrices, also the same damage in both halves.\n\n"
        "tracekit reads a damaged file, and so does an independent reader in plain Python (`tests/sources/plain_readers.py`,"
        " `plain_texts.py`). The script compares what both read: times, ids, sizes and names of ops, calls and ranges;"
        " NVLinks, PCIe connections and NUMA nodes of GPUs; ranks, rings, trees, connections and calls of NCCL. `not compared`"
        " counts files that the plain reader cannot read unambiguously, such as JSON with a repeated key."
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
        " `staging/` of tracekit's store also hold files that do not belong to tracekit. After each kill, the"
        " script repairs the store (`tracekit runs check --repair`). It then checks that the store lists exactly the runs that"
        " existed before the command or that the command had completed, that all tables of these runs can be read, and that"
        " the other files are unchanged. After every fifth kill, it repeats the command, and checks that it succeeds, that all files match"
        " their checksums, and that nothing is left over."
    )
    yield from _section("Kills", part["date"], words)
    rows = [(each["command"], each["ended"], each["times"]) for each in part["moments"]]
    yield from _table(("command", "state after the signal", "times"), rows)


def _interrupts(part: Results) -> Iterator[str]:
    words = (
        "`benchmarks/interrupts.py` sends SIGINT to a command and its child processes, as Ctrl-C does on a terminal. The moment is"
        " random, after the command's first line of code. Each command that had not finished printed one line, `tracekit:"
        " interrupted`, and ended with exit code 130. No files were left in the store's `staging/`, and no page was half"
        " written. All tables of all listed runs could be read. At the end, each command was repeated and succeeded."
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
        "The table gives the share of branches and lines of `tracekit/` that the tests execute. Processes that tests start count,"
        " too: commands, worker processes, annotated programs. Two kinds of code count as not executed although tests run them:"
        " code compiled by Numba, and the process that supervises a recording. Not run were the tests of `workloads/`, most tests of"
        " the documentation, and tests marked `nightly`."
    )
    yield from _section("Coverage", part["date"], words)
    rooms = {**part["rooms"], "**all**": part["all"]}
    rows = [(room, f"{s['branches']:.1%}", f"{s['lines']:.1%}") for room, s in rooms.items()]
    yield from _table(("folder of `tracekit/`", "branches", "lines"), rows)


def _mutants(part: Results) -> Iterator[str]:
    tried = sum(sum(each.values()) for each in part["rooms"].values())
    words = (
        "To see whether the tests detect errors, `benchmarks/mutants.py` changes one operator, number, condition or method of"
        f" the code at a time, and runs tests. Of {part['all']:,} possible changes, {part.get('asked', tried):,} were drawn at"
        f" random (seed {part['seed']}) and {tried:,} tried. For each change, tests ran of the packages whose tests execute"
        " the changed line, and of the packages beside them. A change is *detected* if a test fails that passes without the"
        " change.\n\nThe *score* is the share of detected changes. Changes that cannot affect any answer do not count in it;"
        " `benchmarks/equivalent_mutants.toml` lists them with the reason. Changes for which a test was added after this run"
        " count as detected."
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
