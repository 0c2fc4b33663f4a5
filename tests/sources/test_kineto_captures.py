"""Replays of CUDA graphs joined with captures in other traces: never where two look alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tracekit as tk
from tracekit.cli import app
from tracekit.errors import DamagedTraceError, InputError, MissingDataError, UsageError

Operator = tuple[str, list[list[int]], str]
MM: Operator = ("aten::mm", [[2, 3], [3, 4]], "gemm")
ADD: Operator = ("aten::add", [[8], [8]], "add")


def _x(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def _written(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def capture(path: Path, *graphs: list[Operator], at: float = 0, names: bool = True) -> Path:
    """Write captures one after another; each operator takes 20 us, and launches its kernel.

    Calls have the ids of calls of the replay: each recording counts for itself.
    """
    events = []
    for graph in graphs:
        begin = at
        events.append(_x("cuda_runtime", "hipStreamBeginCapture", at, 1, correlation=1))
        for operator, dims, kernel in graph:
            at += 20
            types = ["float"] * len(dims)
            events.append(
                _x("cpu_op", operator, at, 15, **{"Input Dims": dims, "Input type": types})
            )
            told = {"kernel": kernel} if names else {}
            events.append(_x("cuda_runtime", "hipLaunchKernel", at + 5, 2, correlation=90, **told))
        at += 20
        events.append(_x("cuda_runtime", "hipStreamEndCapture", at, 1, correlation=3))
        events.append(_x("user_annotation", "capture_8_FULL", begin - 1, at - begin + 5))
        at += 100
    return _written(path, events)


def replay(path: Path, *launches: list[str]) -> Path:
    """Write a step per launch of a graph of kernels, 10 us each; times are far from a capture's."""
    events = []
    for number, kernels in enumerate(launches):
        at = 1e9 + 1_000 * number
        events.append(_x("user_annotation", f"ProfilerStep#{number}", at, 900))
        events.append(_x("cuda_runtime", "hipGraphLaunch", at + 5, 50, correlation=90 + number))
        for place, name in enumerate(kernels):
            place_in_time = at + 20 + 12 * place
            event = _x("kernel", name, place_in_time, 10, correlation=90 + number, device=0,
                       stream=3, grid=[1, 1, 1], block=[64, 1, 1])  # fmt: skip
            events.append(event)
    return _written(path, events)


def joined(tmp_path: Path, trace: Path, *captures: Path) -> tk.Run:
    return tk.ingest(trace, captures=captures, store=tmp_path / "store")[0]


def operators(run: tk.Run) -> list[tuple[str | None, int]]:
    rows = run.roofline("operator", sort="operator")
    return rows.select("operator", "operators").rows()


@pytest.mark.slow
def test_kernels_are_of_the_operators_of_their_capture(tmp_path: Path) -> None:
    run = joined(
        tmp_path,
        replay(tmp_path / "replay.json", ["gemm", "add"], ["gemm", "add"]),
        capture(tmp_path / "capture.json", [ADD, MM], [MM, ADD]),
    )
    assert operators(run) == [("add", 2), ("mm", 2)]
    assert run.flops("iteration")["flops"].to_list() == [48.0, 48.0]  # 2 x 2 x 3 x 4 in each
    ranges = run.trace.read("ranges").select("range", around="name")
    ops = run.trace.read("ops").join(ranges, on="range", how="left", maintain_order="left")
    assert ops["around"].to_list() == ["aten::mm", "aten::add"] * 2
    assert ops["graph_node"].to_list() == [3, 4, 3, 4]
    assert run.warnings == ()
    # A capture is before the first step, and moves nothing.
    assert run.breakdown("iteration")["ops"].to_list() == [2, 2]
    plain = tk.ingest(tmp_path / "replay.json", store=tmp_path / "other")[0]
    assert run.breakdown("kind").equals(plain.breakdown("kind"))


def test_several_captures_may_be_in_several_files(tmp_path: Path) -> None:
    run = joined(
        tmp_path,
        replay(tmp_path / "replay.json", ["gemm"], ["add"]),
        capture(tmp_path / "a.json", [ADD]),
        capture(tmp_path / "b.json", [MM], at=5_000),
    )
    assert operators(run) == [("add", 1), ("mm", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "told"),
    [
        ([("aten::bmm", [[1, 2, 3], [1, 3, 4]], "gemm")], False),  # another operator
        ([("aten::mm", [[8, 3], [3, 4]], "gemm")], False),  # the same of another batch
        ([MM], True),  # it makes no difference which
    ],
)
def test_captures_that_look_alike_are_joined_only_if_they_are(
    tmp_path: Path, other: list[Operator], told: bool
) -> None:
    run = joined(
        tmp_path,
        replay(tmp_path / "replay.json", ["gemm"]),
        capture(tmp_path / "capture.json", [MM], other),
    )
    assert operators(run) == [("mm" if told else None, 1)]
    alike = "1 of 1 launches of CUDA graphs replay kernels that several captures name equally"
    assert any(alike in each for each in run.warnings) is not told


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [["add", "gemm"], ["gemm"], ["gemm", "add", "add"]])
def test_other_kernels_are_another_graph(tmp_path: Path, kernels: list[str]) -> None:
    run = joined(
        tmp_path,
        replay(tmp_path / "replay.json", kernels, ["gemm", "add"]),
        capture(tmp_path / "capture.json", [MM, ADD]),
    )
    assert ("mm", 1) in operators(run)
    assert "1 of 2 launches of CUDA graphs replay kernels that no capture names" in run.warnings[0]


@pytest.mark.slow
def test_another_capture_makes_the_run_anew(tmp_path: Path) -> None:
    trace = replay(tmp_path / "replay.json", ["gemm"])
    assert operators(joined(tmp_path, trace)) == [(None, 1)]
    first = joined(tmp_path, trace, capture(tmp_path / "a.json", [MM]))
    assert operators(first) == [("mm", 1)]
    bmm: Operator = ("aten::bmm", [[1, 2, 3], [1, 3, 4]], "gemm")
    second = joined(tmp_path, trace, capture(tmp_path / "b.json", [bmm]))
    assert operators(second) == [("bmm", 1)]
    again, is_new = tk.ingest(trace, captures=[tmp_path / "b.json"], store=tmp_path / "store")
    assert (again.id, is_new) == (second.id, False)


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    trace = replay(tmp_path / "replay.json", ["gemm"])
    with pytest.raises(MissingDataError, match="has no capture of a CUDA graph"):
        joined(tmp_path, trace, trace)
    unnamed = capture(tmp_path / "unnamed.json", [MM], names=False)
    with pytest.raises(MissingDataError, match="name no kernels"):
        joined(tmp_path, trace, unnamed)
    with pytest.raises(InputError, match="no file"):
        joined(tmp_path, trace, tmp_path / "absent.json")
    samples = Path(__file__).parents[2] / "sample_traces"
    with pytest.raises(UsageError, match="only traces of PyTorch's profiler"):
        joined(tmp_path, samples / "ddp_4gpu.sqlite", unnamed)
    with pytest.raises(UsageError, match="of one file"):
        tk.ingest([trace], captures=[unnamed], store=tmp_path / "store", name="many")


def test_the_command_line_takes_captures_of_one_file(tmp_path: Path) -> None:
    words = ["--store", str(tmp_path / "store")]
    trace = str(replay(tmp_path / "replay.json", ["gemm"]))
    captures = ["--capture", str(capture(tmp_path / "capture.json", [MM]))]
    done = CliRunner().invoke(app, ["ingest", trace, *captures, *words])
    assert done.exit_code == 0, done.output
    assert operators(tk.open("replay", store=tmp_path / "store")) == [("mm", 1)]
    refused = CliRunner().invoke(app, ["ingest", trace, trace, *captures, *words])
    assert refused.exit_code != 0


def test_a_damaged_capture_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    trace = replay(tmp_path / "replay.json", ["gemm"])
    whole = capture(tmp_path / "capture.json", [MM]).read_text()
    cut = tmp_path / "cut.json"
    cut.write_text(whole[: len(whole) // 2])
    with pytest.raises(DamagedTraceError):
        joined(tmp_path, trace, cut)
    assert operators(joined(tmp_path, trace)) == [(None, 1)]
