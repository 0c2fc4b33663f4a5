"""Rules on computation: precision, layout, and fusion of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from tracekit.analysis.diagnosis._facts import Facts, Finding, Win, counted, duration
from tracekit.analysis.diagnosis._parts import CELL, LENGTH, Part, counted_values, quantile_of
from tracekit.analysis.operators import (
    has_sizes,
    memory_bandwidths,
    multiplies,
    precision_by_name,
    with_bounds,
    with_peaks,
    work_done,
)
from tracekit.machine import peak_flops, products_of_gpus
from tracekit.model import Frames, readable_names

_FASTER = ("tf32", "bf16", "fp16")
_LAYOUT = "nchwTo[nN]hwc|nhwcTo[nN]chw|NCHW2CNHW|CNHW2NCHW|batched_transpose_|nchwToFolded"
_ELEMENTWISE = r"at::native::\S*elementwise_kernel|^void at::native::\S*elementwise"
KERNELS_OF: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "fp32_products": lambda name: multiplies(name) & (precision_by_name(name) == "fp32"),
    "layout_transposes": lambda name: name.str.contains(_LAYOUT),
    "unfused_elementwise": lambda name: name.str.contains(_ELEMENTWISE),
}
"""Patterns of the names of kernels that a rule is about."""
_OFTEN = 0.1
"""Products in FP32 that take a smaller part of a step are not spoken of."""
_MUCH = 0.05
"""All operators run above their bound: a smaller part of a step is not spoken of."""
_TERA = 10**12
_HALF = 0.5
_OPERATORS = pl.Schema(
    {"device": pl.Int32, "iteration": pl.Int64, "operator": pl.String, "bound": pl.String,
     "sizes": pl.String, "kernel_ns": pl.Int64, "headroom": pl.Int64, "number": pl.Int64}
)  # fmt: skip
_CHAIN = 3
"""Shorter chains of elementwise kernels are not spoken of."""


def fp32_products(facts: Facts) -> Finding | None:
    """Find FP32 matrix products on GPUs that support TF32."""
    devices = facts.trace.read("devices")
    gpus = dict(devices.select("device", products_of_gpus(devices)).rows())
    peaks = {device: peak_flops(name) for device, name in gpus.items()}
    able = [device for device, each in peaks.items() if each.get("tf32", 0) > each.get("fp32", 0)]
    names, sums = (
        facts.of_rule(named_kernels, each, "fp32_products").filter(pl.col("device").is_in(able))
        for each in ("names", "sums")
    )
    lost = facts.lost(sums)
    if lost.mean < _OFTEN * facts.step_ns or sums.is_empty():
        return None
    device = names.sort("first")["device"][0]
    first = peaks[device]
    tera = {name: f"{peak / _TERA:.4g}" for name, peak in first.items()}
    times = max(first.get(name, 0) for name in _FASTER) / first["fp32"]
    return Finding(
        finding=f"Matrix products in FP32 take {duration(lost.mean)} {facts.per} "
        f"({facts.share(lost.mean)}), on GPUs whose Tensor Cores are up to {times:.3g} times as "
        "fast.",
        win=Win(lost.mean * (1 - 1 / times) / 2, 0.0, lost.most * (1 - 1 / times)),
        confidence="likely",
        evidence=(
            _most_of(facts, names),
            *facts.where(layers_of_kernels, "fp32_products", able),
            f"{gpus[device]}: {tera['fp32']} TFLOP/s in FP32, {tera['tf32']} in TF32",
        ),
        advice="Let FP32 products use TF32 (`torch.set_float32_matmul_precision('high')`), or "
        "compute in bfloat16 or half, where the network bears less exact products. Products that "
        "memory bounds win less.",
        of_gpu=True,
        of_compute=True,
    )


def layout_transposes(facts: Facts) -> Finding | None:
    """Find convolutions that transpose the layout of their tensors."""
    lost = facts.lost(facts.of_rule(named_kernels, "sums", "layout_transposes"))
    if not facts.is_worth(lost.mean):
        return None
    return Finding(
        finding=f"Kernels that turn layouts between NCHW and NHWC take {duration(lost.mean)} "
        f"{facts.per} ({facts.share(lost.mean)}).",
        win=Win(lost.mean * 3 / 4, 0.0, lost.most),
        confidence="likely",
        evidence=(
            _most_of(facts, facts.of_rule(named_kernels, "names", "layout_transposes")),
            *facts.where(layers_of_kernels, "layout_transposes"),
        ),
        advice="Keep network and input in `memory_format=torch.channels_last`, so that "
        "convolutions need not turn them; layers that know no such layout turn them back.",
        of_gpu=True,
        of_compute=True,
    )


def unfused_elementwise(facts: Facts) -> Finding | None:
    """Find chains of elementwise kernels that a single fused kernel could replace."""
    chains = facts.of_rule(named_kernels, "sums", "unfused_elementwise")
    lost = facts.lost(chains)
    saved = facts.lost(chains, "saved")
    if not facts.is_worth(saved.mean):
        return None
    number, kernels = _runs(facts, "unfused_elementwise")
    length = f"{kernels / number:.3g} kernels in the mean"
    return Finding(
        finding=f"Chains of elementwise kernels take {duration(lost.mean)} {facts.per} "
        f"({facts.share(lost.mean)}); fused, a chain moves its data once.",
        win=Win(saved.mean / 2, 0.0, saved.most),
        confidence="hint",
        evidence=(
            f"{counted(number / facts.cells.height, 'chain')} {facts.per_gpu}, of {length}",
            *facts.where(layers_of_kernels, "unfused_elementwise"),
            "it is not recorded whether one reads the output of the one before",
        ),
        advice="Fuse them: `torch.compile`, a fused optimizer (`fused=True`), fused norms and "
        "activations.",
        of_gpu=True,
        of_compute=True,
    )


def tiny_kernels(facts: Facts) -> Finding | None:
    """Find sequences of kernels so short that a GPU waits for the launch of each."""
    own = facts.idle.filter("is_short", "is_tiny", ~pl.col("queued").fill_null(value=True))
    runs = facts.of_rule(named_kernels, "sums", "tiny_kernels")
    lost, working, spared = facts.lost(own), facts.lost(runs), facts.lost(runs, "saved")
    won = facts.won(lost)
    if not facts.is_worth(won):
        return None
    number, kernels = _runs(facts, "tiny_kernels")
    long = counted(kernels / number, "kernel")
    typical = duration(quantile_of(facts.found(named_kernels)["lengths"], _HALF) or 0.0)
    each = counted(kernels / facts.cells.height, "kernel")
    return Finding(
        finding=f"{each} {facts.per_gpu} of about {typical} in runs cost "
        f"{duration(lost.mean + working.mean)} {facts.per}: {duration(working.mean)} of work, "
        f"and {duration(lost.mean)} ({facts.share(lost.mean)}) in which a GPU waits for the next "
        "launch.",
        win=Win(0.75 * won, lost.least / 2, lost.most + spared.most),
        confidence="likely",
        evidence=(
            f"{counted(number / facts.cells.height, 'run')} {facts.per_gpu} of {long} in the mean",
            "each kernel takes no more than 10 us",
            *facts.where(layers_of_kernels, "tiny_kernels"),
        ),
        advice="Launch these together: a CUDA graph around them, `torch.compile`, a fused or "
        "`foreach` optimizer. Fused, they take less work as well.",
    )


def largest_headroom(facts: Facts) -> Finding | None:
    """Find the operator whose total time exceeds its roofline bound most."""
    rows = facts.found(operators)["rows"]
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
    by_size = own.group_by("sizes").agg(pl.col("headroom", "number").sum())
    longest = by_size.sort("headroom", "sizes", descending=[True, False]).row(0, named=True)
    least = 100 * (1 - lost.mean / taken.mean)
    each = counted(longest["number"] / facts.cells.height, "operator")
    return Finding(
        finding=f"`{name}` runs {duration(lost.mean)} {facts.per} ({facts.share(lost.mean)}) above "
        f"its bound, which is {bound}: no operator is further above.",
        win=Win(lost.mean / 2, 0.0, lost.most),
        confidence="perhaps",
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


def operators(part: Part) -> Frames:
    """Return the time of operators beyond their roofline bound, in usual (not cold) steps.

    ``rows``: ``device, iteration, operator, bound`` (what limits the operator), ``sizes`` (of its
    tensors); ``number`` of calls, ``kernel_ns`` (of all calls), ``headroom`` (ns above the bound).
    """
    by = ["device", "iteration", "operator", "bound", "sizes"]
    if not has_sizes(part.trace):
        return {"rows": pl.DataFrame(schema=_OPERATORS)}
    done, _ = with_peaks(part.trace, work_done(part.trace, moving=True), None)
    if part.steps["process"].null_count():
        done = done.with_columns(iteration=pl.lit(0, pl.Int64))
    cells = part.steps.select(CELL).unique()
    found = with_bounds(
        part.trace, done.join(cells, on=CELL, how="semi"), memory_bandwidths(part.trace, None)
    )
    above = pl.col("kernel_ns") - pl.col("bound_ns").ceil().cast(pl.Int64)
    known = found.drop_nulls(["bound_ns", "operator"]).with_columns(headroom=above.clip(0))
    sums = known.group_by(by).agg(pl.col("kernel_ns", "headroom").sum(), number=pl.len())
    return {"rows": sums.select(_OPERATORS.names()).cast(_OPERATORS)}


def named_kernels(part: Part) -> Frames:
    """Return four tables on the kernels that rules select by name or as sequences of tiny kernels.

    ``sums``: ``rule, device, iteration``; ``time`` of these kernels, and how much is ``saved`` if
    each sequence became a single kernel, ns. ``names``: ``rule, device, name``; ``number`` and
    ``time`` of these kernels, and ``first``, the op id of the first. ``runs``: number of sequences
    and of their kernels, by rule. ``lengths``: lengths of tiny kernels, each with its ``number``.
    """
    rows, runs = _of_rules(part)
    first = {
        rule: own.hstack([part.trace.in_run(own.select("op"))["op"].alias("first")])
        for rule, own in rows.items()
    }
    return {
        "sums": pl.concat(
            own.group_by(CELL).agg(time=LENGTH.sum(), saved=pl.col("saved").sum())
            .select(pl.lit(rule).alias("rule"), *CELL, "time", "saved")
            for rule, own in {**rows, **runs}.items()
        ),
        "names": pl.concat(
            own.group_by("device", pl.col("name").cast(pl.String))
            .agg(number=pl.len(), time=LENGTH.sum(), first=pl.col("first").min())
            .select(pl.lit(rule).alias("rule"), "device", "name", "number", "time", "first")
            for rule, own in first.items()
        ),
        "runs": pl.DataFrame([
            {"rule": rule, "runs": own["run"].n_unique(), "number": own.height}
            for rule, own in runs.items()
        ]),
        "lengths": counted_values(part.tiny.lazy().select(length=LENGTH)),
    }  # fmt: skip


def layers_of_kernels(part: Part) -> Frames:
    """Return the table ``where``: time of the kernels of `named_kernels` by rule, GPU and layer."""
    rows, runs = _of_rules(part)
    return {"where": part.launched_in({**rows, **runs})}


def _of_rules(part: Part) -> tuple[dict[str, pl.DataFrame], dict[str, pl.DataFrame]]:
    """Return rule -> kernels (table) for rules on single kernels, and for rules on sequences."""
    names = part.ops.select(pl.col("name").unique()).collect()
    text = pl.col("name").cast(pl.String)
    of_rule = {
        rule: pl.col("name").is_in(names.filter(holds(text))["name"].implode())
        for rule, holds in KERNELS_OF.items()
    }
    rows = {
        rule: part.ops.filter(pl.col("kind") == "compute", of_rule[rule])
        .with_columns(saved=LENGTH).collect()
        for rule in ("fp32_products", "layout_transposes")
    }  # fmt: skip
    runs = part.runs(of_rule["unfused_elementwise"], _CHAIN)
    return rows, {"unfused_elementwise": runs, "tiny_kernels": part.tiny}


def _runs(facts: Facts, rule: str) -> tuple[int, int]:
    """Return the number of sequences found by a rule, and of the kernels in them."""
    own = facts.of_rule(named_kernels, "runs", rule)
    return int(own["runs"].sum()), int(own["number"].sum())


def _most_of(facts: Facts, names: pl.DataFrame) -> str:
    """Return text: kernels (`names`) per step and GPU, and the name with the longest total time."""
    each = names.group_by("name").agg(pl.col("time").sum())
    longest = each.sort("time", "name", descending=[True, False])["name"][0]
    [short] = readable_names([longest]).values()
    number = counted(int(names["number"].sum()) / facts.cells.height, "kernel")
    return f"{number} {facts.per_gpu}, most of the time `{short}`"
