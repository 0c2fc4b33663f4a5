"""The tables of ``docs/performance.md``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    Figures = Mapping[str, Any]

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
    """Return the figures as Markdown: the machine, and a table each of ratios, sizes and steps."""
    exports: list[Figures] = figures["exports"]
    sections = [
        _machine(figures["machine"]),
        _table("wall time / sql_max (wall time, peak memory)", exports, _processes(exports)),
        _table("comparison, times faster", exports, _rows(exports, "comparisons", "{:.1f}")),
        _table("growth from the column before", exports, _growth(exports)),
        _table("step of an ingest, seconds", exports, _rows(exports, "steps_s", "{:.2f}")),
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


def _table(title: str, exports: Sequence[Figures], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    heads = [f"{export['kernels']:,} kernels" for export in exports]
    lines = [[title, *heads], ["---", *(["---:"] * len(heads))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _processes(exports: Sequence[Figures]) -> list[list[str]]:
    return [
        [f"`{name}`", *(_cost(each["measures"].get(name)) for each in exports)]
        for name in _names(exports, "measures")
    ]


def _names(exports: Sequence[Figures], key: str) -> list[str]:
    """Return what was measured of any export, in order."""
    return list(dict.fromkeys(name for each in exports for name in each[key]))


def _cost(measure: Figures | None) -> str:
    if measure is None:
        return "-"
    peak = measure["peak_bytes"] / 1e9
    return f"{measure['ratio']:.2f} ({measure['wall_s']:.2f} s, {peak:.2f} GB)"


def _rows(exports: Sequence[Figures], key: str, style: str) -> list[list[str]]:
    return [
        [name, *(style.format(each[key][name]) if name in each[key] else "-" for each in exports)]
        for name in _names(exports, key)
    ]


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
