"""The tables of ``docs/evidence/performance.md``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Figures = Mapping[str, Any]

BUDGET = {
    "digest": "0.13",
    "pages to columns": "0.14",
    "shaping and sorting": "0.10",
    "attribution": "0.20",
    "writing": "0.20",
}
"""What parts of an ingest are to take at 5 million kernels: prototypes of each take as much."""
_GAINS = {
    "kernels by range, from the export": ("nvtx_kern_sum", ("ingest", "by range")),
    "the same, asked again": ("nvtx_kern_sum", ("by range",)),
    "GPU time of ranges and stages, from the export": (
        "nvtx_gpu_proj_sum", ("ingest", "by stage"),
    ),
    "kernels by name, asked again": ("cuda_gpu_kern_sum", ("by kernel",)),
}  # fmt: skip
BEGIN = "<!-- figures: written by benchmarks/run.py -->"
END = "<!-- end of figures -->"


def write_page(page: Path, figures: Figures) -> None:
    """Put the tables of `figures` between the markers of `page`.

    Raises
    ------
    ValueError
        If the page lacks a marker.
    """
    text = page.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no lines {BEGIN!r} and {END!r} to write between")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{tables(figures)}\n\n{END}{after}", encoding="utf-8")


def tables(figures: Figures) -> str:
    """Return the figures as Markdown: what is gained, ratios, parts, many reports, goals."""
    exports: list[Figures] = figures["exports"]
    heads = [f"{export['kernels']:,} kernels" for export in exports]
    shares = [
        export | {"shares": dict(_shares(export["steps_s"])), "parts": dict(_parts(export))}
        for export in exports
    ]
    sections = [
        _machine(figures["machine"]),
        _table(["question", "kernels", "nsys stats", "tracekit", "times faster"], _gains(exports)),
        _table(["wall time / sql_max (wall time, peak memory)", *heads], _processes(exports)),
        _table(["comparison, times faster", *heads], _rows(exports, "comparisons", _times)),
        _table(["growth from the column before", *heads], _growth(exports)),
        _table(
            ["seconds of processors per million kernels", "budget", *heads],
            [[row[0], BUDGET.get(row[0], "-"), *row[1:]] for row in _rows(shares, "parts", str)],
        ),
        _table(["step of an ingest, seconds (share)", *heads], _rows(shares, "shares", str)),
        _reports(figures.get("reports")),
        _ranks(figures.get("ranks", ())),
        _goals(figures, heads),
    ]
    return "\n\n".join(section for section in sections if section)


def _machine(machine: Mapping[str, str]) -> str:
    versions = [
        f"{name} {value}"
        for name, value in machine.items()
        if name not in {"cores", "memory", "processor", "load"}
    ]
    return (
        f"Machine: {machine['cores']} cores of {machine['processor']}, {machine['memory']} of"
        f" memory, other load {machine['load']} when the measurement began; {', '.join(versions)}."
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [heads, ["---", *(["---:"] * (len(heads) - 1))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gains(exports: Sequence[Figures]) -> Iterator[list[str]]:
    """Yield by question what nsys takes and what tracekit does, of the largest export of both."""
    for question, (report, names) in _GAINS.items():
        having = [each for each in exports if {f"nsys {report}", *names} <= set(each["measures"])]
        if not having:
            continue
        measures = having[-1]["measures"]
        other, own = measures[f"nsys {report}"], sum(measures[name]["wall_s"] for name in names)
        than = "" if other["ended"] else "> "
        yield [
            question,
            f"{having[-1]['kernels']:,}",
            f"{than}{other['wall_s']:.1f} s (`{report}`)",
            f"{own:.1f} s ({' + '.join(f'`{name}`' for name in names)})",
            f"{than}{other['wall_s'] / own:.0f}",
        ]


def _goals(figures: Figures, heads: Sequence[str]) -> str:
    goals = [_goal(goal) for goal in figures["goals"]]
    for goal in figures.get("goals_of_reports", ()):
        first, cell = _goal(goal)
        goals.append([first, *["-"] * (len(heads) - 1), cell])
    return _table(["measured (its goal)", *heads], goals)


def _goal(goal: Figures) -> list[str]:
    sign, unit = ("≥" if goal["is_least"] else "≤"), goal["unit"]
    return [goal["name"], *(_held(each, sign, unit) for each in goal["measured"])]


def _held(measured: Figures | None, sign: str, unit: str) -> str:
    if measured is None:
        return "-"
    value = f"{'' if measured['is_all'] else '> '}{measured['value']:.2f}{unit}"
    if measured["limit"] is None:
        return value
    met = {True: ", met", False: "", None: ", not known"}[measured["met"]]
    return f"{value} ({sign} {measured['limit']:g}{unit}{met})"


def _processes(exports: Sequence[Figures]) -> list[list[str]]:
    return [[f"`{row[0]}`", *row[1:]] for row in _rows(exports, "measures", _cost)]


def _rows(exports: Sequence[Figures], key: str, shown: Callable[[Any], str]) -> list[list[str]]:
    """Return a row for each name under `key` that any export has."""
    names = dict.fromkeys(name for each in exports for name in each[key])
    return [
        [name, *(shown(each[key][name]) if name in each[key] else "-" for each in exports)]
        for name in names
    ]


def _cost(measure: Figures) -> str:
    if not measure["ended"]:
        return f"> {measure['ratio']:.2f} (> {measure['wall_s']:.0f} s)"
    return f"{measure['ratio']:.2f} ({_time_and_peak(measure)})"


def _time_and_peak(measure: Figures) -> str:
    peak = measure["peak_bytes"]
    return f"{measure['wall_s']:.2f} s" + (f", {peak / 1e9:.2f} GB" if peak else "")


def _times(comparison: Figures) -> str:
    return f"{'' if comparison['ended'] else '> '}{comparison['times']:.1f}"


def _shares(steps_s: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    total = sum(steps_s.values())
    for step, seconds in steps_s.items():
        yield step, f"{seconds:.2f} ({seconds / total:.0%})"


def _parts(export: Figures) -> Iterator[tuple[str, str]]:
    """Yield seconds of processors by part, per million kernels but for what is done once."""
    per = export["kernels"] / 1_000_000
    for part, seconds in export["parts_cpu_s"].items():
        yield part, f"{seconds / per:.2f}" if part in BUDGET else f"{seconds:.2f} in all"


def _reports(reports: Figures | None) -> str:
    if reports is None:
        return ""
    head = f"{reports['reports']} reports of {reports['kernels']:,} kernels as one run"
    costs = [
        [name, _time_and_peak(cost), f"{cost['cpu_s']:.2f} s"]
        for name, cost in reports["measures"].items()
    ]
    times = [[f"{name}, times", _times(each), ""] for name, each in reports["comparisons"].items()]
    heads = [head, "wall time, peak memory of a process", "seconds of processors, but of workers"]
    return _table(heads, [*costs, *times])


def _ranks(runs: Sequence[Figures]) -> str:
    if not runs:
        return ""
    head = f"reports of {runs[0]['kernels']:,} kernels as one run, wall time and peak memory"
    heads = [f"{run['reports']:,} reports" for run in runs]
    return _table([head, *heads], _rows(runs, "measures", _time_and_peak))


def _growth(exports: Sequence[Figures]) -> list[list[str]]:
    if len(exports) == 1:
        return []
    grown = {
        "kernels": [each["kernels"] for each in exports],
        "wall time of ingest": [each["measures"]["ingest"]["wall_s"] for each in exports],
        "peak memory of ingest": [each["measures"]["ingest"]["peak_bytes"] for each in exports],
    }
    return [[name, "", *_factors(values)] for name, values in grown.items()]


def _factors(values: Sequence[float]) -> Iterator[str]:
    for before, after in pairwise(values):
        yield f"{after / before:.1f}"
