from __future__ import annotations

import itertools
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from present_frames import HOSTILE

from tracekit.machine import Link, Machine, load_preset, preset_names, with_nics
from tracekit.machine._choose import side_by_side
from tracekit.machine._graph import with_fabric
from tracekit.present import Heading, machine_figure, machine_layout
from tracekit.present._figures import INK, SCALE
from tracekit.present._machine_layout import Box, Drawing

LINKS = {
    "link": pl.String, "src": pl.String, "dst": pl.String, "utilisation": pl.Float64,
    "bytes": pl.Int64, "achieved_gb_s": pl.Float64, "peak_gb_s": pl.Float64, "evidence": pl.String,
}  # fmt: skip
CUBE = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def nvlinks(bricks: dict[tuple[int, int], int]) -> list[Link]:
    return [
        Link((f"GPU{one}", f"GPU{other}"), "nvlink", count, count * 25 * 10**9)
        for (one, other), count in bricks.items()
    ]


def made(nodes: str, links: list[Link]) -> Machine:
    kinds = {"G": "gpu", "N": "nic", "P": "pcie", "C": "host", "S": "nvswitch"}
    names = {"S": "NVSwitch"}
    return Machine.of(
        "m",
        {names.get(n[0], n[:-1]) + n[-1]: {"type": kinds[n[0]]} for n in nodes.split()},
        links,
    )


def gpus(count: int) -> dict[str, dict[str, object]]:
    return {f"GPU{number}": {"type": "gpu"} for number in range(count)}


def mesh(count: int) -> list[Link]:
    return nvlinks(dict.fromkeys(itertools.combinations(range(count), 2), 1))


def shown(machine: Machine, rows: list[tuple[Any, ...]] | None = None) -> go.Figure:
    links = None if rows is None else pl.DataFrame(rows, LINKS, orient="row")
    return machine_figure(machine, links, heading=Heading("Machine", "run r"))


def texts(figure: go.Figure) -> list[str]:
    return [each.text for each in figure.layout.annotations]


def flow(src: str, dst: str, share: float | None, evidence: str = "measured") -> tuple[Any, ...]:
    return f"{src}-{dst}", src, dst, share, 10**6, 1.5, 50.0, evidence


def overlap(one: Box, other: Box) -> bool:
    return (
        abs(one.x - other.x) < (one.width + other.width) / 2
        and abs(one.y - other.y) < (one.height + other.height) / 2
    )


def distance(box: Box, start: tuple[float, float], end: tuple[float, float]) -> float:
    """Return how near a line comes to the middle of a box, tried at many points."""
    steps = [step / 200 for step in range(201)]
    return min(
        max(
            abs(start[0] + (end[0] - start[0]) * s - box.x),
            abs(start[1] + (end[1] - start[1]) * s - box.y),
        )
        for s in steps
    )


def assert_legible(drawing: Drawing) -> None:
    boxes = list(dict.fromkeys(drawing.boxes.values()))
    for one, other in itertools.combinations(boxes, 2):
        assert not overlap(one, other), (one, other)
    for wire in drawing.wires:
        for box in boxes:
            if box.kind == "gpu" and box not in wire.ends:
                for start, end in itertools.pairwise(wire.points):
                    assert distance(box, start, end) > box.width / 4, (wire.ends, box)


MACHINES = {
    **{name: load_preset(name) for name in preset_names()},
    "cube without hosts": Machine.of("m", gpus(8), nvlinks(CUBE)),
    "half a cube": Machine.of(
        "m", gpus(4), nvlinks({pair: n for pair, n in CUBE.items() if max(pair) < 4})
    ),
    "one": Machine.of("m", gpus(1), []),
    "two": Machine.of("m", gpus(2), mesh(2)),
    "three": Machine.of("m", gpus(3), mesh(3)),
    "mesh of 6": Machine.of("m", gpus(6), mesh(6)),
    "mesh of 8": Machine.of("m", gpus(8), mesh(8)),
    "mesh of 11": Machine.of("m", gpus(11), mesh(11)),
    "pairs far apart": Machine.of("m", gpus(8), nvlinks({(n, n + 4): 4 for n in range(4)})),
}


@pytest.mark.parametrize("name", MACHINES)
def test_nothing_covers_anything_else(name: str) -> None:
    machine = MACHINES[name]
    drawing = machine_layout(machine)
    assert set(drawing.boxes) == set(machine.graph)
    assert not drawing.missing
    assert sum(len(wire.links) for wire in drawing.wires) == len(machine.links)
    assert_legible(drawing)


@given(
    st.integers(1, 10).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.sets(st.tuples(*[st.integers(0, count - 1)] * 2).filter(lambda p: p[0] < p[1])),
            st.lists(st.integers(0, 5), min_size=count, max_size=count),
        )
    )
)
@settings(max_examples=examples(150), deadline=None)
def test_no_machine_is_drawn_over_itself(
    drawn: tuple[int, set[tuple[int, int]], list[int]],
) -> None:
    count, pairs, below = drawn
    nodes = gpus(count) | {f"PCIe{n}": {"type": "pcie"} for n in below if n}
    nodes |= {f"CPU{n}": {"type": "host"} for n in range(2)}
    links = nvlinks(dict.fromkeys(pairs, 1))
    links += [Link((f"GPU{gpu}", f"PCIe{n}"), "pcie") for gpu, n in enumerate(below) if n]
    links += [Link((f"PCIe{n}", f"CPU{n % 2}"), "pcie") for n in set(below) - {0}]
    drawing = machine_layout(Machine.of("m", nodes, [*links, Link(("CPU0", "CPU1"), "socket")]))
    assert set(drawing.boxes) == set(nodes)
    assert_legible(drawing)


@pytest.mark.parametrize("name", ["dgx1p", "dgx1v"])
def test_the_halves_of_a_cube_are_two_squares_at_one_height(name: str) -> None:
    machine = load_preset(name)
    boxes = machine_layout(machine).boxes
    assert len({boxes[gpu].x for gpu in machine.nodes("gpu")}) == 8
    assert max(boxes[f"GPU{n}"].x for n in range(4)) < min(boxes[f"GPU{n}"].x for n in range(4, 8))
    across = [link for link in machine.links if link.is_peer
              if len({end for end in link.ends if end < "GPU4"}) == 1]  # fmt: skip
    assert len(across) == 4
    assert all(boxes[link.ends[0]].y == boxes[link.ends[1]].y for link in across)


def test_gpus_stand_above_what_they_hang_from() -> None:
    boxes = machine_layout(load_preset("dgx1v")).boxes
    assert boxes["GPU0"].y > boxes["PCIe0"].y > boxes["NIC0"].y > boxes["CPU0"].y
    assert boxes["PCIe0"].width > boxes["GPU1"].x - boxes["GPU0"].x
    assert machine_layout(load_preset("dgx-h100")).boxes["NVSwitch0"].y > 0


def test_switches_that_join_the_same_gpus_are_one_bar() -> None:
    links = [Link((f"GPU{g}", f"NVSwitch{s}"), "nvlink", 2) for g in range(2) for s in range(3)]
    machine = made("GPU0 GPU1 S0 S1 S2", links)
    drawing = machine_layout(machine)
    assert drawing.boxes["NVSwitch0"] is drawing.boxes["NVSwitch2"]
    assert [len(wire.links) for wire in drawing.wires] == [3, 3]
    figure = shown(machine)
    assert "3 x NVSwitch" in texts(figure)
    assert [trace.name for trace in figure.data if trace.name] == ["6 NVLinks"]


def test_the_legend_tells_types_widths_and_peaks() -> None:
    figure = shown(load_preset("dgx1v"))
    entries = sorted((t for t in figure.data if t.showlegend), key=lambda t: t.legendrank)
    assert [trace.name for trace in entries] == [
        "1 NVLink, 25 GB/s", "2 NVLinks, 50 GB/s", "PCIe, 15.8 GB/s",
        "between sockets",
    ]  # fmt: skip
    widths = [trace.line.width for trace in entries]
    assert widths[0] < widths[1]
    assert len({trace.line.color for trace in entries}) == 3
    assert not any(trace.marker.showscale for trace in figure.data)
    assert {"GPU<br><b>0</b>", "PCIe3", "CPU1", "NIC2"} <= set(texts(figure))


def test_used_links_have_the_colour_of_their_share() -> None:
    figure = shown(load_preset("dgx1v"), [flow("GPU0", "GPU3", 1.0), flow("GPU3", "GPU0", 0.0)])
    lines = {t.line.color: t for t in figure.data if t.mode == "lines" and not t.showlegend}
    assert set(lines) == {SCALE[0], SCALE[-1]}
    onward, back = lines[SCALE[-1]], lines[SCALE[0]]
    assert onward.x[0] < onward.x[1]
    assert back.x[0] > back.x[1]
    # Side by side, not one on the other: each drives on the right.
    assert onward.y[0] < back.y[1]
    assert {"100.0 %", "0.0 %"} <= set(texts(figure))
    hovers = next(t.hovertext for t in figure.data if t.hovertext)
    assert (
        "<b>GPU0 → GPU3</b><br>100.0 % of the peak<br>1,000,000 bytes<br>"
        "1.5 of 50 GB/s<br>measured" in hovers
    )
    assert "<b>GPU1-GPU2</b><br>2 NVLinks, 50 GB/s<br>not used" in hovers
    assert any(trace.marker.showscale for trace in figure.data)


def test_modelled_unknown_and_foreign_links_are_told_apart() -> None:
    figure = shown(
        load_preset("dgx1v"),
        [
            flow("GPU0", "GPU3", 0.5, "modelled"),
            flow("GPU0", "PCIe0", None),
            flow("GPU0", "GPU7", 0.5),
            flow("X", HOSTILE, 0.5),
        ],
    )
    lines = [t for t in figure.data if t.mode == "lines" and not t.showlegend]
    assert sorted(t.line.dash for t in lines) == ["7px,3px", "solid"]
    assert INK in {t.line.color for t in lines}
    assert "?" in texts(figure)
    assert "broken lines: modelled, not measured" in texts(figure)
    assert "black: used, how much of the peak is unknown" in texts(figure)
    assert any(
        text.startswith("not links of this machine: GPU0-GPU7, X-␛") for text in texts(figure)
    )


def test_of_several_rows_the_fullest_gives_the_colour() -> None:
    figure = shown(
        MACHINES["two"],
        [flow("GPU0", "GPU1", 0.0), flow("GPU0", "GPU1", 1.0), flow("GPU0", "GPU1", None)],
    )
    (line,) = [t for t in figure.data if t.mode == "lines" and not t.showlegend]
    assert line.line.color == SCALE[-1]


def test_no_transfers_is_said_and_links_that_carried_nothing_are_not_coloured() -> None:
    idle = ("GPU0-GPU1", "GPU0", "GPU1", 0.0, 0, None, 25.0, "measured")
    for rows in ([], [idle]):
        figure = shown(MACHINES["two"], rows)
        assert "no transfers" in texts(figure)
        assert [t.showlegend for t in figure.data if t.mode == "lines"] == [True]
    assert "no transfers" not in texts(shown(MACHINES["two"]))


def test_links_whose_traffic_is_unknown_are_not_drawn_as_unused() -> None:
    machine = Machine.of("m", gpus(2), mesh(2))
    links = pl.DataFrame([], LINKS, orient="row")
    figure = machine_figure(machine, links, heading=Heading("Machine", "run r"), unplaced=7)
    assert "dotted: unknown (7 collectives on no link)" in texts(figure)
    assert "no transfers" not in texts(figure)
    assert "dot" in {trace.line.dash for trace in figure.data}
    said = [text for trace in figure.data for text in trace.hovertext or ()]
    assert any("traffic unknown" in text for text in said)
    assert not any("not used" in text for text in said)


def test_many_flows_have_no_numbers_beside_them() -> None:
    rows = [
        flow(*ends, 0.5)
        for link in load_preset("dgx2").links
        if link.type == "nvlink"
        for ends in (link.ends, link.ends[::-1])
    ]
    assert not any("%" in text for text in texts(shown(load_preset("dgx2"), rows)))


def test_parts_without_a_place_are_named() -> None:
    machine = made("GPU0 GPU1 NIC0", [])
    assert "not in the drawing: NIC0" in texts(shown(machine))
    assert texts(shown(Machine.of("m", {}, [])))[1:] == ["no machine"]


def test_many_nics_of_one_switch_are_one_box() -> None:
    links = [Link((f"NIC{n}", "PCIe0"), "pcie") for n in range(8)]
    machine = made(
        "GPU0 PCIe0 CPU0 " + " ".join(f"NIC{n}" for n in range(8)),
        [*links, Link(("GPU0", "PCIe0"), "pcie"), Link(("PCIe0", "CPU0"), "pcie")],
    )
    assert_legible(machine_layout(machine))
    assert any(text.startswith("8 x") for text in texts(shown(machine)))


@pytest.mark.slow
def test_deep_chains_of_switches_end_somewhere() -> None:
    nodes = {f"PCIe{n}": {"type": "pcie"} for n in range(1200)}
    links = [Link((f"PCIe{n}", f"PCIe{n + 1}"), "pcie") for n in range(1199)]
    drawing = machine_layout(Machine.of("m", nodes, links))
    assert set(drawing.boxes) == set(nodes)


def test_hostile_attributes_stay_text() -> None:
    machine = Machine.of("m", {"GPU0": {"type": "gpu", "product": HOSTILE}}, [])
    (hovers,) = [trace.hovertext for trace in shown(machine).data if trace.hovertext]
    assert hovers[0].startswith("<b>GPU0</b><br>product: ␛[31mred")
    assert "<b>&amp;" not in hovers[0]


def test_utilisation_between_bounds() -> None:
    """Both bounds are written; the colour is that of the highest."""
    machine = Machine.of("m", gpus(2), nvlinks({(0, 1): 2}))
    row = {
        "link": "GPU0-GPU1", "src": "GPU0", "dst": "GPU1", "utilisation": None, "bytes": None,
        "achieved_gb_s": None, "peak_gb_s": 50.0, "evidence": "modelled between",
        "least_bytes": 900, "most_bytes": 1_400,
        "least_utilisation": 0.18, "most_utilisation": 0.28,
    }  # fmt: skip
    figure = machine_figure(machine, pl.DataFrame([row]), heading=Heading("Machine", "run r"))
    assert "18.0 % to 28.0 %" in texts(figure)
    hovers = [text for trace in figure.data for text in trace.hovertext or ()]
    [said] = [text for text in hovers if "GPU0 → GPU1" in text]
    assert "18.0 % to 28.0 % of the peak<br>900 to 1,400 bytes" in said
    assert any("broken lines: modelled, not measured" in text for text in texts(figure))


@pytest.mark.parametrize("preset", ["dgx-a100", "hgx-h100-8", "pcie-2"])
@pytest.mark.parametrize("told", [(), ((0, 1), (1, 0))])
def test_hosts_are_joined_by_a_fabric_below_all(preset: str, told: tuple[Any, ...]) -> None:
    """Also where a log names NICs that are in no topology."""
    two, _ = side_by_side([load_preset(preset)] * 2, "two")
    machine = with_nics(with_fabric(two), told)
    drawing = machine_layout(machine)
    assert not drawing.missing
    fabric = drawing.boxes["Fabric0"]
    assert fabric.y < min(box.y for name, box in drawing.boxes.items() if name != "Fabric0")
    joined = {end for wire in drawing.wires if fabric in wire.ends for link in wire.links
              for end in link.ends if end != "Fabric0"}  # fmt: skip
    assert joined == {*machine.graph.adj["Fabric0"]}
    for one, other in itertools.combinations(dict.fromkeys(drawing.boxes.values()), 2):
        assert not one.covers(other)


def test_a_gpu_whose_nic_a_log_names_is_joined_by_that_alone() -> None:
    two, _ = side_by_side([load_preset("hgx-h100-8")] * 2, "two")
    machine = with_nics(with_fabric(two), [(3, 1), (9, 0)])
    assert machine.nodes("nic") == ["NIC1", "NIC2"]
    known = machine.route(3, 9, nics=(1, 0))
    assert known is not None
    assert known.name == "GPU3>NIC1>Fabric0>NIC2>GPU9"
    assert machine.link("GPU3", "Fabric0") is None
    assert machine.link("GPU4", "Fabric0") is not None
