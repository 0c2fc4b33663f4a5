"""``docs/evidence/reliability.md``, of what ``benchmarks/reliability.py`` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Results = Mapping[str, Any]

HEAD = """\
# What was tried against it

Written by `benchmarks/reliability.py` of what it ran; what each number is of is said above it. A wrong number, a traceback,
a hang, a changed input or something left behind ends that script with an error, so that this page has no column for them.
What must hold of stores is in [the store](../store.md).
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
        "Copies of a small file of each format, each damaged in another way: flipped bits, cut and swapped pages, rows, columns"
        " and tables that are changed, dropped, repeated or exchanged, wrong types, huge and negative numbers, ranges that cross,"
        " end before they begin or never, invalid UTF-8, views, triggers, computed columns; of texts, lines and cells, and matrices changed both ways. What is read is held against readers"
        " in plain Python (`tests/sources/plain_readers.py`, `plain_texts.py`): ops, calls and ranges with their times, ids, sizes and"
        " names; NVLinks, relations and NUMA nodes; ranks, rings, trees, connections and calls of NCCL. Some"
        " damaged files, such as JSON with two values of one name, the plain reader leaves open."
    )
    yield from _section("Damaged files", part["date"], words)
    rows = [
        (each["format"], f"{each['cases']:,}", f"{each.get('right', 0):,}", f"{each.get('error', 0):,}",
         f"{each.get(LEFT_OPEN, 0):,}")
        for each in part["formats"]
    ]  # fmt: skip
    yield from _table(("format", "cases", "right", "one clear error", "left open"), rows)
    if part.get("peak_bytes"):  # which is not known of formats that were tried before
        yield f"The process that read them all held {part['peak_bytes'] / MIB:,.0f} MiB at most.\n"


LEFT_OPEN = "read, where the plain reader cannot"


def _tests(part: Results) -> Iterator[str]:
    yield from _section("What is told in words", part["date"], "Tests that passed.")
    yield from _table(("of", "passed"), [(each["of"], each["passed"]) for each in part["groups"]])


def _kills(part: Results) -> Iterator[str]:
    words = (
        "Commands that were killed (SIGKILL) at a random moment of theirs (`benchmarks/kills.py`), on a store whose `runs/` and"
        " `staging/` hold files of others, too. After each, the catalogue was mended where the kill had left it half made, every"
        " run that was there before or that the command had finished was listed, and no other; all of them were read whole,"
        " table by table, and the files of others were as before. After every fifth, the same command finished the job, every"
        " file was held against its checksum, and nothing was left over."
    )
    yield from _section("Kills", part["date"], words)
    rows = [(each["command"], each["ended"], each["times"]) for each in part["moments"]]
    yield from _table(("command", "when the signal came it was", "times"), rows)


def _interrupts(part: Results) -> Iterator[str]:
    words = (
        "Commands that were sent SIGINT at a random moment from their first line of code on, they and what they had started, as"
        " Ctrl-C does on a terminal (`benchmarks/interrupts.py`). Each that was not done said so in one line, `tracekit: interrupted`,"
        " and ended with exit code 130. After each, nothing was left in the store's `staging/` nor beside a page that was half"
        " written, and all runs that were listed were read whole; in the end every command was run to its end. What a recording"
        " does of an interrupt, moment by moment, is in `tests/recording/test_recording_perform.py`."
    )
    yield from _section("Interrupts", part["date"], words)
    rows = [(each["command"], each["ended"], each["times"]) for each in part["moments"]]
    yield from _table(("command", "it was", "times"), rows)


def _memory(part: Results) -> Iterator[str]:
    words = "Peak of the process that ingests a generated export of so many kernels (`benchmarks/generate_export.py`)."
    yield from _section("Memory", part["date"], words)
    rows = [
        (f"{each['kernels']:,}", each["limit"], f"{each['peak_bytes'] / MIB:,.0f} MiB")
        for each in part["ingests"]
    ]
    yield from _table(("kernels", "`--memory`", "peak"), rows)


def _long(part: Results) -> Iterator[str]:
    words = "Seconds of the processor for what is asked of a store, the best of three, by how many runs it has."
    yield from _section("Long use", part["date"], words)
    counts = list(part["seconds"])
    asked = list(part["seconds"][counts[0]])
    rows = [(what, *(f"{part['seconds'][count][what]:.3f}" for count in counts)) for what in asked]
    yield from _table(("seconds to", *(f"runs: {int(count):,}" for count in counts)), rows)
    analyses = part["analyses"]
    early, late = (f"{each / MIB:,.0f} MiB" for each in analyses["held_bytes"])
    number = analyses["number"]
    yield (
        f"One process that opened a run and asked for its breakdown, its idle time and a query {number} times held {early} after"
        f" {number // 4} times, and {late} after all.\n"
    )


def _coverage(part: Results) -> Iterator[str]:
    words = (
        "Branches and lines of `tracekit/` that the tests run, and what they start: commands, workers of an executor, annotated"
        " programs. What is run compiled alone, or by a Python that is kept apart (what supervises a recording), counts as not"
        " run. Left out are the tests of the training programs, of most of the documentation and those marked nightly."
    )
    yield from _section("Coverage", part["date"], words)
    rooms = {**part["rooms"], "**all**": part["all"]}
    rows = [(room, f"{s['branches']:.1%}", f"{s['lines']:.1%}") for room, s in rooms.items()]
    yield from _table(("folder of `tracekit/`", "branches", "lines"), rows)


def _mutants(part: Results) -> Iterator[str]:
    tried = sum(sum(each.values()) for each in part["rooms"].values())
    words = (
        f"One operator, number, condition or method changed at a time (`benchmarks/mutants.py`): of {part['all']:,} possible changes"
        f" {part.get('asked', tried):,} were drawn with the seed {part['seed']}, and {tried:,} of these tried. Each was tried against the tests of the rooms that run the changed line and"
        " those beside them. A test counts if it passes without the change, after the same tests as before. Changes of which"
        " reading shows that no answer depends on them are in `benchmarks/equivalent_mutants.toml`, each with its reason; the"
        " score is the share noticed of the others. Tests were written for some that none noticed, and these are counted as noticed."
    )
    yield from _section("Mutants", part["date"], words)
    rows = [_scored(room, found) for room, found in sorted(part["rooms"].items())]
    whole: Counter[str] = sum((Counter(each) for each in part["rooms"].values()), Counter())
    head = ("folder", "tried", "noticed", "change nothing", "left", "score")
    yield from _table(head, [*rows, _scored("**all**", whole)])
    if part["left"]:
        yield "Not noticed:\n"
        yield "\n".join(f"- `{each}`" for each in part["left"]) + "\n"


def _scored(name: str, found: Mapping[str, int]) -> tuple[object, ...]:
    noticed, equal = found.get("killed", 0) + found.get("hung", 0), found.get("equivalent", 0)
    of = sum(found.values())
    return name, of, noticed, equal, of - noticed - equal, f"{noticed / max(1, of - equal):.0%}"
