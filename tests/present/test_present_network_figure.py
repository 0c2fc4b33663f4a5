"""What crossed the network, as a figure."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from present_frames import HOSTILE

from tracekit.present import Heading
from tracekit.present._link_figures import network_figure


def texts(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations]


def row(host: str | None, nic: str | None, direction: str, size: int | None, **more: Any) -> Any:
    return {
        "host": host, "nic": nic, "direction": direction, "nic_by": "log", "evidence": "modelled",
        "bytes": size, "utilisation": 0.5, "share": 0.4, "exposed_share": 0.1,
    } | more  # fmt: skip


def figure(*rows: dict[str, Any]) -> Any:
    frame = pl.DataFrame([*rows], infer_schema_length=None)
    return network_figure(frame, heading=Heading("Network", "run r"))


def test_bars_of_bytes_and_of_time_by_nic_and_direction() -> None:
    drawn = figure(
        row("b", "mlx5_0", "out", 3_000_000),
        row("a", "mlx5_1", "out", 1_000_000, evidence="measured"),
        row("a", "mlx5_1", "in", 2_000_000, evidence="measured", utilisation=0.25),
    )
    assert drawn.layout.yaxis.ticktext == ("a mlx5_1", "b mlx5_0*")
    bars: dict[str, list[Any]] = {bar.xaxis: [] for bar in drawn.data}
    for bar in drawn.data:
        bars[bar.xaxis].append((bar.y, bar.x))
    assert bars["x"] == [((0, 1), (1.0, 3.0))]
    assert bars["x2"] == [((0,), (2.0,))]
    assert bars["x3"] == [((0, 1), (10.0, 10.0)), ((0, 1), (30.0, 30.0))]
    assert bars["x4"] == [((0,), (10.0,)), ((0,), (30.0,))]
    assert [bar.marker.color for bar in drawn.data if bar.xaxis in ("x", "x2")] == [
        (50.0, 50.0), (25.0,),
    ]  # fmt: skip
    assert [bar.text for bar in drawn.data if bar.text] == [("1 MB, 50%", "3 MB, 50%"),
                                                            ("2 MB, 25%",)]  # fmt: skip
    assert sum(bool(bar.marker.showscale) for bar in drawn.data) == 1
    assert "* modelled, not measured" in texts(drawn)


def test_what_is_not_known_is_said() -> None:
    drawn = figure(
        row(None, None, "out", None, utilisation=None, share=None, exposed_share=None),
        row("a", "mlx5_0", "out", None, utilisation=None, evidence="modelled between",
            least_bytes=900, most_bytes=1_400, nic_by="nearest"),
    )  # fmt: skip
    assert drawn.layout.yaxis.ticktext == ("a mlx5_0*", "unknown host NIC unknown*")
    [sizes] = [bar for bar in drawn.data if bar.xaxis == "x"]
    assert sizes.text == ("900 B to 1.4 kB", "?")
    assert sizes.marker.pattern.shape == "x"
    assert "peak unknown<br>busy: unknown<br>exposed: unknown" in sizes.hovertext[1]
    assert "NICs are assumed to be those nearest to GPUs" in texts(drawn)
    assert [len(bar.y) for bar in drawn.data if bar.xaxis == "x3"] == [1, 1]


def test_those_that_carried_most_are_drawn() -> None:
    drawn = figure(*(row("a", f"NIC{n}", "out", n) for n in range(100)))
    assert len(drawn.layout.yaxis.ticktext) == 72
    assert "a NIC99*" in drawn.layout.yaxis.ticktext
    assert any("28" in text for text in texts(drawn))


def test_nothing_and_hostile_names() -> None:
    empty = network_figure(pl.DataFrame(), heading=Heading("Network", "run r"))
    assert "nothing crossed a network" in texts(empty)
    drawn = figure(row(HOSTILE, HOSTILE, "out", 5))
    assert "<script" not in drawn.to_json()


@pytest.mark.parametrize("size", [0, 2**62])
def test_sizes_at_the_edges(size: int) -> None:
    assert figure(row("a", "b", "out", size)).data
