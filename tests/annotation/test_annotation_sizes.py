"""Sizes that the hooks write: what `flops` and `roofline` make of them, held against PyTorch."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from recorded_ranges import KeptRanges
from trace_builder import TraceBuilder

from tracekit.analysis.arithmetic import flops, roofline
from tracekit.annotation import _sizes
from tracekit.annotation._hooks import Hooks
from tracekit.annotation._step_windows import Every, Windows

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tracekit.model import Trace

pytestmark = pytest.mark.slow  # PyTorch is imported


@pytest.fixture(scope="module", autouse=True)
def _pytorch() -> None:
    globals().update(torch=import_module("torch"), nn=import_module("torch.nn"))


@pytest.fixture
def kept() -> Iterator[KeptRanges]:
    ranges = KeptRanges()
    hooks = Hooks(torch, ranges, 1)
    hooks.install()
    yield ranges
    hooks.remove()


def _operators(kept: KeptRanges) -> list[str]:
    return [name for name in kept.names() if name.startswith("aten::")]


def _with_kernels(kept: KeptRanges) -> Trace:
    """Return a trace of these ranges in which each operator launched one kernel."""
    b = TraceBuilder()
    threads: dict[int, int] = {}
    for each in kept.all:
        thread = threads.setdefault(each.thread, len(threads))
        end = 2 * len(kept.all) if each.end is None else each.end
        b.range(20 * each.start, 20 * end, each.name, thread=thread, style=each.style)
        if each.name.startswith("aten::"):
            b.op("ampere_sgemm_128x64_nn", at=20 * each.start + 5, thread=thread)
    return b.attributed()


def _net() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(4, 6, (5, 3), stride=(2, 1), padding=2)
            self.wide = nn.ConvTranspose2d(6, 4, 3, stride=2)
            self.line = nn.Conv1d(4, 4, 3, bias=False)
            self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4, bias=False))
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.line(self.wide(self.convolution(x)).flatten(2)).transpose(1, 2)
            x = self.block(x)  # of a tensor that is not contiguous
            y: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
            return y

    return Net()


def _step(net: nn.Module, *given: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(*given).sum().backward()
    optimizer.step()


def test_flops_are_those_that_pytorch_counts(kept: KeptRanges) -> None:
    """In all, and of each layer; PyTorch's counter leaves out attention on CPUs."""
    from torch.utils.flop_counter import FlopCounterMode

    net, images = _net(), torch.ones(2, 4, 11, 9)
    with FlopCounterMode(display=False) as counter:
        _step(net, images)
    kept.all.clear()
    _step(net, images)
    trace = _with_kernels(kept)
    rows = flops(trace, ["operator"]).rows
    assert rows["unknown"].sum() == 0
    attention = pl.col("operator").str.contains("attention")
    # 2 sequences of 2 heads, 297 queries by as many keys of 2, and as much for values; twice back
    forward = 2 * 2 * 2 * 297 * 297 * (2 + 2)
    assert rows.filter(attention)["flops"].sum() == 3 * forward
    assert rows.filter(~attention)["flops"].sum() == counter.get_total_flops()
    layers = flops(trace, ["layer"]).rows
    found = {text.split()[1]: each for text, each in layers.select("layer", "flops").iter_rows()}
    counts = counter.get_flop_counts()
    told = {name.partition(".")[2]: sum(each.values()) for name, each in counts.items()}
    told["attention"] += 3 * forward
    assert found == {name: told[name] for name, _ in net.named_children()}


def test_bytes_are_known_by_types(kept: KeptRanges) -> None:
    """`emit_nvtx` writes no types: there they are known by kernels' names alone."""
    net = nn.Linear(3, 5).double()
    _step(net, torch.ones(2, 3, dtype=torch.float64))
    rows = roofline(_with_kernels(kept), ["operator", "dtype"], memory_bandwidth=10**12).rows
    found = {row["operator"]: (row["dtype"], row["bytes"]) for row in rows.to_dicts()}
    read, gradient = 2 * 3 + 5 * 3, 2 * 5
    assert found == {
        "linear": ("float64", 8 * (read + 5 + gradient)),
        # of the weight alone: gradient and input are read, the weight's gradient is written
        "linear_backward": ("float64", 8 * (gradient + read)),
    }


def test_types_are_unknown_where_they_change_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is under autocast, which a machine without a GPU does not switch on."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda: True)
    ranges = KeptRanges()
    hooks = Hooks(torch, ranges, 1)
    hooks.install()
    nn.Linear(3, 5)(torch.ones(2, 3))
    hooks.remove()
    assert _operators(ranges) == ["aten::linear, sizes = [[2, 3], [5, 3], [5]]"]


def test_only_gradients_that_are_wanted_count(kept: KeptRanges) -> None:
    net = nn.Linear(3, 5)
    for given, wanted in ((False, 1), (True, 2)):
        kept.all.clear()
        _step(net, torch.ones(2, 3, requires_grad=given))
        rows = flops(_with_kernels(kept), ["operator"]).rows
        assert dict(rows.select("operator", "flops").iter_rows()) == {
            "linear": 60, "linear_backward": wanted * 60,
        }  # fmt: skip


def test_names_are_told_once_for_all_steps(kept: KeptRanges) -> None:
    net = _net()
    for _ in range(3):
        _step(net, torch.ones(2, 4, 11, 9))
    names = _operators(kept)
    assert len(set(names)) == len(names) / 3


def test_sizes_are_as_bounded_as_memory(kept: KeptRanges, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sizes, "_MOST", 3)
    for rows in range(9):
        _step(nn.Linear(3, 5), torch.ones(rows, 3))
    assert len(set(_operators(kept))) == 6


def test_what_is_recomputed_has_no_sizes(kept: KeptRanges) -> None:
    """The FLOPs of its kernels are unknown, which leaves the MFU so, too."""
    from torch.utils.checkpoint import checkpoint

    net = nn.Linear(3, 5)
    for time, reentrant in enumerate((True, False), 1):
        given = torch.ones(2, 3, requires_grad=True)
        checkpoint(net, given, use_reentrant=reentrant).sum().backward()
        assert [name.split(",")[0] for name in _operators(kept)].count("aten::linear") == time


def test_windows_have_sizes_and_what_is_between_them_has_none() -> None:
    ranges = KeptRanges()
    hooks = Hooks(torch, ranges, 1, windows=Windows(ranges, Every("3:1")))
    hooks.install()
    net = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(5):
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    hooks.remove()
    [window] = [each for each in ranges.all if each.name == "window"]
    sized = [each for each in ranges.all if each.name.startswith("aten::")]
    assert len(sized) == 2
    assert all(window.start < each.start < (window.end or 0) for each in sized)


def test_a_node_that_fails_leaves_nothing_open(kept: KeptRanges) -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5))
    out = net(torch.ones(2, 3))
    with torch.no_grad():
        net[1].weight.add_(1)  # its first value was needed
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    _step(net, torch.ones(2, 3))
    inner = [each for each in kept.all if "aten" in each.name or "layer" in each.name]
    assert all(each.end is not None for each in inner)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compilers_and_transforms_see_pytorch_alone(kept: KeptRanges) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attended = nn.functional.scaled_dot_product_attention(x, x, x)
            y: torch.Tensor = self.layer(nn.functional.linear(attended, self.layer.weight))
            return y

    net, x = Net(), torch.ones(1, 1, 2, 4)
    plain = net(x)
    many: list[Any] = [
        torch.compile(net, backend="eager", fullgraph=True), torch.jit.script(net),
        torch.jit.trace(net, x), torch.fx.symbolic_trace(net),
        torch.export.export(net, (x,)).module(),
    ]  # fmt: skip
    assert all(torch.equal(each(x), plain) for each in many)
    kept.all.clear()
    torch.vmap(lambda row: nn.functional.linear(row, net.layer.weight))(torch.ones(3, 4))
    assert kept.names() == []  # where one call computes several
    assert pickle.loads(pickle.dumps(nn.functional.linear)) is nn.functional.linear
    with pytest.raises(TypeError, match="must be Tensor"):
        nn.functional.linear(1, 2)
