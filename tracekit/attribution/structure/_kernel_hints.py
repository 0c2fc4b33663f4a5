"""Hints in kernel names (layer, optimizer, gradient, fill); the patterns are in a data file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import polars as pl

from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution.structure._work import (
    D2D,
    GRADIENT_EXCHANGE,
    GRAPH,
    H2D,
    KERNELS,
    Array,
    Work,
)
from tracekit.model import KINDS
from tracekit.support.files import schemas

_LISTS = (
    "layer", "lookup", "optimizer", "backward", "loss_gradient", "input_gradient", "batch_norm",
    "fill",
)  # fmt: skip


@dataclass(frozen=True)
class Lane:
    """Ops of one process on one device, in order of launch, with hints in their kernel names."""

    work: Work
    """The ops, in order of launch."""
    symbol: Array
    """Integer for the op's name, or for its kind if it has no name. Launch sequences are compared
    by these integers."""
    kernel: Array
    """Whether the op is a computing kernel, or a CUDA graph recorded as a whole."""
    layer: Array
    lookup: Array
    optimizer: Array
    backward: Array
    loss_gradient: Array
    input_gradient: Array
    batch_norm: Array
    fill: Array
    """Whether the op's name indicates a layer, an embedding look-up, an optimizer kernel, a kernel
    of the backward pass, the gradient of the loss, that of a layer's input, a batch norm, or a
    fill."""
    exchange: Array
    """Whether the op is a collective that exchanges gradients."""
    batch: Array
    """Whether the op is a copy that may bring a batch of input."""

    def __len__(self) -> int:
        return len(self.work)

    def take(self, rows: Array) -> Lane:
        """Return a subset of the ops, given by index or by mask."""
        seen = {name: value[rows] for name, value in vars(self).items() if name != "work"}
        return Lane(self.work.take(rows), **seen)


def look_at(work: Work) -> Lane:
    """Classify one device's ops by the hints in their kernel names."""
    kernel = np.isin(work.kind, (*KERNELS, GRAPH)) & (work.collective == 0)
    # The last one is of ops without a name.
    hints = {
        name: np.asarray(kernel & np.append(found, values=False)[work.name])
        for name, found in _matches(tuple(work.names)).items()
    }
    # A graph holds what a layer holds, and more.
    hints["layer"] = (hints["layer"] & ~hints["optimizer"]) | (work.kind == GRAPH)
    symbol = np.where(work.name >= 0, work.name + len(KINDS), work.kind).astype(np.int64)
    return Lane(
        work=work,
        symbol=symbol,
        kernel=kernel,
        exchange=np.isin(work.collective, GRADIENT_EXCHANGE),
        batch=np.isin(work.kind, (H2D, D2D)) & (work.bytes >= THRESHOLDS.batch_bytes),
        **hints,
    )


@cache
def _patterns() -> dict[str, str]:
    content = tomllib.loads((schemas() / "stages" / "structure.toml").read_text(encoding="utf-8"))
    return {name: "|".join(f"(?:{pattern})" for pattern in content[name]) for name in _LISTS}


@lru_cache(1)  # processes of one report have the same names
def _matches(names: tuple[str, ...]) -> dict[str, Array]:
    """Return for each list of name patterns (such as ``layer``) a mask of the names it matches."""
    name = pl.col("name").str
    known = {list_name: name.contains(pattern) for list_name, pattern in _patterns().items()}
    found = pl.DataFrame({"name": names}, schema={"name": pl.String}).select(**known)
    return {column.name: column.to_numpy() for column in found}
