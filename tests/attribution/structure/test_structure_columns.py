"""Loops over whole columns find what loops over passes and gaps find."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._gaps import _mended
from tracekit.attribution.structure._sequences import kinds_of
from tracekit.attribution.structure._step_table import networks_of

FLAGS = ("layer", "optimizer", "batch", "fill", "kernel")


@st.composite
def turns(draw: st.DrawFn) -> Any:
    """Ops of some kinds, and ranges of them one after the other."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8)), min_size=1))
    edges = np.cumsum(np.array(lengths).ravel()).reshape(-1, 2)
    size = int(edges[-1, 1]) + draw(st.integers(0, 2))
    column = st.lists(st.booleans(), min_size=size, max_size=size)
    symbols = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    lane = {name: np.array(draw(column), np.bool_) for name in FLAGS}
    lane["symbol"] = np.array(draw(symbols), np.int64)
    first, stop = edges.T.copy()
    return SimpleNamespace(
        lane=SimpleNamespace(**lane), first=first, stop=stop, bursts=first, ends=stop,
        passes=kinds_of(lane["symbol"], first, stop),
    )  # fmt: skip


def naive_networks(turns: Any) -> list[int]:
    """Compare each backward pass that differs from those before with the first of each network."""
    kinds = turns.passes.tolist()
    known: list[NDArray[np.int64]] = []
    network: dict[int, int] = {}
    for kind, begin, end in zip(kinds, turns.bursts, turns.ends, strict=True):
        if kind in network:
            continue
        own = np.bincount(turns.lane.symbol[begin:end][turns.lane.kernel[begin:end]], minlength=6)
        shares = [np.minimum(own, each).sum() / max(own.sum(), each.sum(), 1) for each in known]
        if shares and max(shares) >= THRESHOLDS.same_network:
            network[kind] = shares.index(max(shares))
        else:
            network[kind] = len(known)
            known.append(own)
    return [network[kind] for kind in kinds]


def naive_mended(turns: Any, number: int, head: int, front: int) -> tuple[int, int]:
    """Move the cuts of one gap."""
    place = range(turns.first[number], turns.stop[number])
    lane = turns.lane
    before = next((at for at, op in enumerate(place) if lane.layer[op]), len(place))
    early = [at for at, op in enumerate(place) if lane.optimizer[op] and at < before]
    if early:
        head = max(head, early[-1] + 1)
        front = max(head, front)
    others = [at for at, op in enumerate(place)
              if head <= at < front and not lane.batch[op] and not lane.fill[op]]  # fmt: skip
    return head, others[-1] + 1 if others else head


@settings(deadline=None)
@given(turns())
def test_networks_are_those_that_passes_are_compared_to(turns: Any) -> None:
    assert networks_of(turns).tolist() == naive_networks(turns)


@settings(deadline=None)
@given(turns(), st.data())
def test_cuts_of_gaps_are_moved_as_one_by_one(turns: Any, data: st.DataObject) -> None:
    sizes = (turns.stop - turns.first).tolist()
    cuts = [tuple(data.draw(st.integers(0, size)) for _ in range(2)) for size in sizes]
    heads, fronts = np.array(cuts, np.int64).T
    numbers = np.arange(len(sizes))
    mended = zip(*(each.tolist() for each in _mended(turns, numbers, heads, fronts)), strict=True)
    assert list(mended) == [naive_mended(turns, at, *cuts[at]) for at in numbers.tolist()]
