"""Rules on computation: precision, layout, and fusion of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from tracekit.analysis.diagnosis._facts import LENGTH, Facts, Finding, counted, duration
from tracekit.analysis.operators import (
    has_sizes,
    memory_bandwidths,
    multiplies,
    precision_by_name,
    with_bounds,
    with_peaks,
    work_done,
)
from tracekit.machine import peak_flops

_FASTER = ("tf32", "bf16", "fp16")
_LAYOUT = "nchwTo[nN]hwc|nhwcTo[nN]chw|NCHW2CNHW|CNHW2NCHW|batched_transpose_|nchwToFolded"
_ELEMENTWISE = r"at::native::\S*elementwise_kernel|^void at::native::\S*elementwise"
KERNELS_OF: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "fp32_products": lambda name: multiplies(name) & (precision_by_name(name) == "fp32"),
    "layout_transposes": lambda name: name.str.contains(_LAYOUT),
    "unfused_elementwise": lambda name: name.str.contains(_ELEMENTWISE),
}
"""What tells by their names the kernels that a rule is about."""
_OFTEN = 0.1
"""Products in FP32 that take a smaller part of a step are not spoken of."""
_MUCH = 0.05
"""All operators run above their bound: a smaller part of a step is not spoken of."""
_TERA = 10**12
_TINY_NS = 10_000
"""A kernel takes about as long as its launch, if it takes no longer."""
_RUN = 8
"""Shorter runs of tiny kernels are not spoken of."""
_LONGEST_LAUNCH_NS = 1_000_000
_CHAIN = 3
"""Shorter chains of elementwise kernels are not spoken of."""


def fp32_products(facts: Facts) -> Finding | None:
    """Find FP32 matrix products on GPUs that support TF32."""
    names = dict(facts.trace.read("devices").select("device", "name").rows())
    peaks = {device: peak_flops(name) for device, name in names.items()}
    able = [device for device, each in peaks.items() if each.get("tf32", 0) > each.get("fp32", 0)]
    own = _named(facts, "fp32_products")
    rows = own.filter(pl.col("device").is_in(able))
    lost = facts.lost(rows)
    if lost.mean < _OFTEN * facts.step_ns or rows.is_empty():
        return None
    first = peaks[rows["device"][0]]
    tera = {name: f"{peak / _TERA:.4g}" for name, peak in first.items()}
    times = max(first.get(name, 0) for name in _FASTER) / first["fp32"]
    return Finding(
        finding=f"Matrix products in FP32 take {duration(lost.mean)} {facts.per} "
        f"({facts.share(lost.mean)}), on GPUs whose Tensor Cores are up to {times:.3g} times as "
        "fast.",
        win=lost.mean * (1 - 1 / times) / 2,
        low=0.0,
        high=lost.most * (1 - 1 / times),
        sure="likely",
        evidence=(
            _most_of(facts, rows),
            *facts.launched_in(rows),
            f"{names[rows['device'][0]]}: {tera['fp32']} TFLOP/s in FP32, {tera['tf32']} in TF32",
        ),
        advice="Let FP32 products use TF32 (`torch.set_float32_matmul_precision('high')`), or "
        "train in bfloat16 or half, where the network bears less exact products. Products that "
        "memory bounds win less.",
        of_gpu=True,
        of_compute=True,
    )


def layout_transposes(facts: Facts) -> Finding | None:
    """Find convolutions that transpose the layout of their tensors."""
    rows = _named(facts, "layout_transposes")
    lost = facts.lost(rows)
    if not facts.is_worth(lost.mean):
        return None
    return Finding(
        finding=f"Kernels that turn layouts between NCHW and NHWC take {duration(lost.mean)} "
        f"{facts.per} ({facts.share(lost.mean)}).",
        win=lost.mean * 3 / 4,
        low=0.0,
        high=lost.most,
        sure="likely",
        evidence=(_most_of(facts, rows), *facts.launched_in(rows)),
        advice="Keep network and input in `memory_format=torch.channels_last`, so that "
        "convolutions need not turn them; layers that know no such layout turn them back.",
        of_gpu=True,
        of_compute=True,
    )


def unfused_elementwise(facts: Facts) -> Finding | None:
    """Find chains of elementwise kernels that one fused kernel could replace."""
    chains = _chains(facts)
    lost = facts.lost(chains)
    saved = facts.lost(chains, "saved")
    if not facts.is_worth(saved.mean):
        return None
    number = chains["run"].n_unique()
    length = f"{chains.height / number:.3g} kernels in the mean"
    return Finding(
        finding=f"Chains of elementwise kernels take {duration(lost.mean)} {facts.per} "
        f"({facts.share(lost.mean)}); fused, a chain moves its data once.",
        win=saved.mean / 2,
        low=0.0,
        high=saved.most,
        sure="hint",
        evidence=(
            f"{counted(number / facts.cells.height, 'chain')} {facts.per_gpu}, of {length}",
            *facts.launched_in(chains),
            "it is not recorded whether one reads the output of the one before",
        ),
        advice="Fuse them: `torch.compile`, a fused optimizer (`fused=True`), fused norms and "
        "activations.",
        of_gpu=True,
        of_compute=True,
    )


def tiny_kernels(facts: Facts) -> Finding | None:
    """Find sequences of kernels so short that a GPU waits for the launch of each."""
    runs = _runs(facts, LENGTH <= _TINY_NS, _RUN)
    late = facts.gaps.select("gap", op="ended_by").join(runs.select("op"), on="op", how="semi")
    waits = facts.idle_of("launch", "late_launch").join(late, on="gap", how="semi")
    own = waits.filter(
        LENGTH.sum().over("gap") <= _LONGEST_LAUNCH_NS, ~pl.col("queued").fill_null(value=True)
    )
    lost, working = facts.lost(own), facts.lost(runs)
    spared = facts.lost(runs.with_columns(saved=_but_longest()), "saved")
    won = facts.won(lost)
    if not facts.is_worth(won):
        return None
    number, kernels = runs["run"].n_unique(), runs.height / facts.cells.height
    long = counted(runs.height / number, "kernel")
    typical = duration(float(runs.select(LENGTH.median()).item()))
    return Finding(
        finding=f"{counted(kernels, 'kernel')} {facts.per_gpu} of about {typical} in runs cost "
        f"{duration(lost.mean + working.mean)} {facts.per}: {duration(working.mean)} of work, "
        f"and {duration(lost.mean)} ({facts.share(lost.mean)}) in which a GPU waits for the next "
        "launch.",
        win=0.75 * won,
        low=lost.least / 2,
        high=lost.most + spared.most,
        sure="likely",
        evidence=(
            f"{counted(number / facts.cells.height, 'run')} {facts.per_gpu} of {long} in the mean",
            "each kernel takes no more than 10 us",
            *facts.launched_in(runs),
        ),
        advice="Launch these together: a CUDA graph around them, `torch.compile`, a fused or "
        "`foreach` optimizer. Fused, they take less work as well.",
    )


def largest_headroom(facts: Facts) -> Finding | None:
    """Find the operator with the most time above its roofline bound."""
    rows = _bounded(facts) if has_sizes(facts.trace) else pl.DataFrame()
    if rows.is_empty():
        return None
    by_operator = rows.group_by("operator").agg(pl.col("headroom").sum())
    name = by_operator.sort("headroom", "operator", descending=[True, False])["operator"][0]
    own = rows.filter(operator=name)
    lost = facts.lost(own, "headroom")
    if lost.mean < _MUCH * facts.step_ns:
        return None
    by_bound = own.group_by("bound").agg(pl.col("headroom").sum())
    bound = by_bound.sort("headroom", "bound", descending=[True, False])["bound"][0]
    taken = facts.lost(own, "kernel_ns")
    by_size = own.group_by("sizes").agg(pl.col("headroom").sum(), number=pl.len())
    longest = by_size.sort("headroom", "sizes", descending=[True, False]).row(0, named=True)
    least = 100 * (1 - lost.mean / taken.mean)
    each = counted(longest["number"] / facts.cells.height, "operator")
    return Finding(
        finding=f"`{name}` runs {duration(lost.mean)} {facts.per} ({facts.share(lost.mean)}) above "
        f"its bound, which is {bound}: no operator is further above.",
        win=lost.mean / 2,
        low=0.0,
        high=lost.most,
        sure="perhaps",
        evidence=(
            f"its kernels take {duration(taken.mean)} {facts.per}, {least:.3g} % of that at peaks",
            f"most of it in {each} {facts.per_gpu} of sizes {longest['sizes']}",
        ),
        advice="See `tracekit roofline --by operator,sizes,dtype`. The bound is a model, and no "
        "kernel reaches all peaks: try other kernels or layouts, larger batches, or fusing it with "
        "what is before and behind.",
        of_gpu=True,
        of_compute=True,
    )


def _bounded(facts: Facts) -> pl.DataFrame:
    """Return operators of usual steps with a known bound, and ``headroom``: time above it, ns."""
    done, _ = with_peaks(facts.trace, work_done(facts.trace, moving=True), None)
    if facts.has_steps:
        done = done.join(facts.cells, on=["device", "iteration"], how="semi")
    else:
        done = done.with_columns(iteration=pl.lit(0, pl.Int64))
    found = with_bounds(facts.trace, done, memory_bandwidths(facts.trace, None))
    known = found.drop_nulls(["bound_ns", "operator"])
    return known.with_columns(headroom=(pl.col("kernel_ns") - pl.col("bound_ns")).clip(0))


def _runs(facts: Facts, own: pl.Expr, least: int) -> pl.DataFrame:
    """Return sequences of kernels that meet a condition, sorted by GPU, step and start.

    A sequence (``run``) is `least` or more consecutive kernels of one step and GPU, launched by one
    thread.

    Returns
    -------
    ``op, device, iteration, start, end, run``.
    """
    kernels = facts.ops.filter(pl.col("kind") == "compute").select(
        "op", "device", "iteration", "start", "end", "launch_thread", own=own
    )
    ordered = kernels.sort("device", "iteration", "start", maintain_order=True)
    run = pl.struct("own", "device", "iteration", "launch_thread").rle_id()
    marked = ordered.with_columns(run=run).filter("own").drop("own", "launch_thread")
    return marked.filter(pl.len().over("run") >= least).collect()


def _named(facts: Facts, rule: str) -> pl.DataFrame:
    """Return the kernels of usual steps whose names a rule selects."""
    return facts.ops.filter(pl.col("kind") == "compute", _is_of(facts, rule)).collect()


def _is_of(facts: Facts, rule: str) -> pl.Expr:
    """Return an expression for the kernels whose names a rule selects; each name is tested once."""
    names = facts.ops.select(pl.col("name").unique()).collect()
    text = pl.col("name").cast(pl.String)
    return pl.col("name").is_in(names.filter(KERNELS_OF[rule](text))["name"].implode())


def _most_of(facts: Facts, rows: pl.DataFrame) -> str:
    """Say the number of kernels, and name the one that takes most time."""
    each = rows.group_by(pl.col("name").cast(pl.String)).agg(time=LENGTH.sum())
    longest = each.sort("time", "name", descending=[True, False])["name"][0]
    number = counted(rows.height / facts.cells.height, "kernel")
    return f"{number} {facts.per_gpu}, most of the time `{longest}`"


def _chains(facts: Facts) -> pl.DataFrame:
    """Return sequences of elementwise kernels, see `_runs`.

    ``saved`` is the most that fusing wins, ns: all of a sequence but its longest kernel.
    """
    chains = _runs(facts, _is_of(facts, "unfused_elementwise"), _CHAIN)
    return chains.with_columns(saved=_but_longest())


def _but_longest() -> pl.Expr:
    """Return lengths of kernels, 0 for the longest of each sequence: fusing does not shorten it."""
    longest = LENGTH.max().over("run") == LENGTH
    is_first = pl.int_range(pl.len()).over("run", longest) == 0
    return pl.when(longest & is_first).then(0).otherwise(LENGTH)
