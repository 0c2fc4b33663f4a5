"""Section on communication: bytes and bandwidth of links and of pairs of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.errors import MissingDataError
from tracekit.present import machine_layout, size_text
from tracekit.present.pages import answer_table, fragment, joined
from tracekit.report._svg_charts import (
    Axis,
    Entry,
    Heat,
    HeatCell,
    HeatRow,
    Plot,
    curve,
    dots,
    heat_level,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from tracekit.machine import Machine
    from tracekit.report._subject import Subject

_EDGE = 12
_FAST = {"nvlink", "nvswitch", "c2c", "nvlink-c2c"}


class _Wire(NamedTuple):
    path: str
    look: str
    title: str


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    look: str
    text: str


class _Drawing(NamedTuple):
    title: str
    label: str
    box: str
    width: float
    wires: Sequence[_Wire]
    boxes: Sequence[_Box]
    legend: Sequence[Entry]


def communication(subject: Subject) -> Markup:
    """Draw the machine, traffic between GPUs, and the speed of collectives."""
    run = subject.run
    traffic = subject.close.traffic
    by_link = traffic.links()
    unplaced = int(traffic.meta()["collectives_on_no_link"])
    pieces = [_machine(traffic.machine, by_link, unplaced), _matrix(traffic.links("pair"))]
    pieces += _collectives(subject)
    if not by_link.is_empty():
        pieces.append(answer_table(run.links.answer(by="link"), "links", "Traffic by link"))
    found = [piece for piece in pieces if piece is not None]
    if not found:
        raise MissingDataError("nothing moved between GPUs, as far as was recorded")
    return joined(*found)


def _collectives(subject: Subject) -> list[Markup | None]:
    try:
        answer = subject.run.collectives.answer()
    except MissingDataError:
        return []
    if answer.rows.is_empty():
        return []
    return [
        _bandwidths(answer.rows),
        answer_table(answer, "collectives", "Collectives", is_open=True),
    ]


def _bandwidths(rows: pl.DataFrame) -> Markup | None:
    """Draw the bus bandwidth of collectives by size, with known peaks; None without any."""
    names = rows.columns
    if "bus_bandwidth_gb_s" not in names:
        return None
    known = rows.drop_nulls(["bytes", "bus_bandwidth_gb_s"]).filter(pl.col("bytes") > 0)
    if known.is_empty():
        return None
    sizes = known["bytes"].to_list()
    rates = known["bus_bandwidth_gb_s"].to_list()
    peaks = known["peak_gb_s"].drop_nulls().to_list() if "peak_gb_s" in names else []
    x = Axis("size (bytes)", min(sizes) / 2, max(sizes) * 2, is_log=True)
    y = Axis("bus bandwidth (GB/s)", 0.0, 1.1 * max([*rates, *peaks]))
    lines = [dots("odd", list(zip(sizes, rates, strict=True)), x, y)]
    lines += [curve("guide", [(x.low, peak), (x.high, peak)], x, y) for peak in sorted(set(peaks))]
    title = "Bus bandwidth of collectives by size"
    return Plot(title, title, x, y, lines).html()


def _matrix(pairs: pl.DataFrame) -> Markup | None:
    if pairs.is_empty():
        return None
    low, high = _bounds(pairs)
    moved = pairs.group_by("src_device", "dst_device").agg(low.sum(), high.sum())
    cells = {(src, dst): (least, most) for src, dst, least, most in moved.iter_rows()}
    ends = sorted({end for pair in cells for end in pair})
    most = float(max(high for _, high in cells.values()))
    rows = [
        HeatRow(str(src), [_pair_cell(src, dst, cells.get((src, dst)), most) for dst in ends])
        for src in ends
    ]
    note = "Rows send, columns receive. Darker is more, at most."
    return Heat("Bytes between GPUs", [str(end) for end in ends], rows, note).html()


def _pair_cell(src: int, dst: int, moved: tuple[int, int] | None, most: float) -> HeatCell:
    text = "-" if moved is None else _span_text(*moved)
    level = heat_level(None if moved is None else moved[1], 0.0, most)
    return HeatCell(level, text, f"{src} to {dst}: {text}")


def _bounds(links: pl.DataFrame) -> tuple[pl.Expr, pl.Expr]:
    """Return expressions: a row's least and most bytes, equal if its bytes are known exactly."""
    names = {*links.columns}
    low, high = (
        pl.coalesce("bytes", name) if name in names else pl.col("bytes")
        for name in ("least_bytes", "most_bytes")
    )
    return low.alias("low"), high.alias("high")


def _span_text(low: int, high: int) -> str:
    return size_text(low) if low == high else f"{size_text(low)} to {size_text(high)}"


def _machine(machine: Machine, links: pl.DataFrame, unplaced: int) -> Markup | None:
    """Draw the machine; mark links with traffic, and links whose traffic is unknown."""
    drawing = machine_layout(machine)
    if not drawing.boxes:
        return None
    left, right, bottom, top = drawing.bounds
    used = _carried(links)
    wires = [
        _Wire(
            "M" + "L".join(f"{x - left + _EDGE:.1f} {top - y + _EDGE:.1f}" for x, y in wire.points),
            _look(wire.links, used, "untold" if unplaced else ""),
            _wire_title(wire, used, is_known=not unplaced),
        )
        for wire in drawing.wires
    ]
    boxes = [
        _Box(
            round(box.x - box.width / 2 - left + _EDGE, 1),
            round(top - box.y - box.height / 2 + _EDGE, 1),
            box.width,
            box.height,
            box.kind,
            _name(box.nodes),
        )
        for box in dict.fromkeys(drawing.boxes.values())
    ]
    width, height = right - left + 2 * _EDGE, top - bottom + 2 * _EDGE
    title = f"The machine: {machine.name} ({machine.origin})"
    looks = {
        "nvlink": "NVLink", "pcie": "PCIe and host", "used": "carried traffic",
        "untold": "unknown: collectives on no link",
    }  # fmt: skip
    seen = {look for wire in wires for look in wire.look.split()}
    legend = [Entry(look, text) for look, text in looks.items() if look in seen]
    return fragment(
        "drawing",
        _Drawing(title, title, f"0 0 {width:.0f} {height:.0f}", round(width), wires, boxes, legend),
    )


def _carried(links: pl.DataFrame) -> dict[frozenset[str], tuple[int, int]]:
    if not {"src", "dst", "bytes"} <= {*links.columns}:
        return {}
    low, high = _bounds(links)
    sums = links.drop_nulls(["src", "dst"]).group_by("src", "dst").agg(low.sum(), high.sum())
    found: dict[frozenset[str], tuple[int, int]] = {}
    for src, dst, least, most in sums.iter_rows():
        ends = frozenset((str(src), str(dst)))
        before = found.get(ends, (0, 0))
        found[ends] = (before[0] + least, before[1] + most)
    return found


def _look(
    links: Sequence[Any], used: Mapping[frozenset[str], tuple[int, int]], otherwise: str
) -> str:
    if any(frozenset(link.ends) in used for link in links):
        return "used"
    return f"{'nvlink' if any(link.type in _FAST for link in links) else 'pcie'} {otherwise}"


def _wire_title(
    wire: Any, used: Mapping[frozenset[str], tuple[int, int]], *, is_known: bool
) -> str:
    each = [used.get(ends, (0, 0)) for ends in {frozenset(link.ends) for link in wire.links}]
    low, high = (sum(bound) for bound in zip(*each, strict=True))
    ends = " and ".join(_name(box.nodes) for box in wire.ends)
    types = ", ".join(dict.fromkeys(link.type for link in wire.links))
    carried = f", {_span_text(low, high)} carried" if high else ""
    return f"between {ends}: {types}{carried}{'' if carried or is_known else ', traffic unknown'}"


def _name(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}"
