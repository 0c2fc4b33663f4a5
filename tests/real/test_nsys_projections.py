"""What ranges of real traces hold is what NVIDIA's `nsys stats` says: `nvtx_gpu_proj_sum`, and
`nvtx_kern_sum` with a range's kernels added up.

Where it differs on purpose:

- It counts the CUDA calls of ranges, and tracekit the ops: a call may launch several.
- Where a range lies in one of its own name, it counts a kernel of both once and adds its time
  twice.
- A range of a domain that nobody announced is printed without the domain, as in `test_nsys_stats`.
"""

from __future__ import annotations

import polars as pl
import pytest
from nsys_projections import RECORDED, Projections, projections, recorded_rows, together
from nsys_stats import STYLES, TRACES, UNANNOUNCED, recorded
from projections import projected_ranges

import tracekit as tk

REPORTS = (
    "ddp_unet_4xa100_rank0.nsys-rep",
    "mnist_1xa100_first_optimization.nsys-rep",
    "unet_1xa100_4workers.nsys-rep",
    "unet_1xa100_dali.nsys-rep",
    "unet_1xa100_dali_bf16_fused_jit.nsys-rep",
    "unet_1xgpu_dali.qdrep",
    "unet_1xgpu_dali_amp.qdrep",
)
CALLS = {"jacobi_p2p_staged_8xv100": {"PushPop Jacobi solve": 10_000}}
"""By trace and range, how many calls launched its ops where that is another number than of these:
here every copy between two GPUs is one to the host and one from there."""
SELF_NESTED = {
    "mnist_1xa100_phases": {("PushPop aten::clamp_min", "750478", "750478"): 177},
    "mnist_1xa100_first_optimization": {("PushPop aten::clamp_min", "755774", "755774"): 177},
}
"""By trace and range, how many kernels nsys counts where a range lies in one of its own name."""


def _named_ranges(run: tk.Run, name: str) -> pl.LazyFrame:
    """Return the ranges of a run under the names that `nsys stats` gives them."""
    domain = pl.when(~pl.col("domain").is_in(UNANNOUNCED.get(name, []))).then(
        pl.col("domain") + ":"
    )
    style = pl.col("style").cast(pl.String).replace_strict(STYLES)
    return run.table("ranges").with_columns(
        name=style + " " + pl.concat_str(domain, "name", ignore_nulls=True)
    )


def _projections_of(run: tk.Run, name: str) -> Projections:
    """Say what tracekit knows of a run in the words of `nsys stats`."""
    ranges = (
        _named_ranges(run, name)
        .join(run.table("threads").select("thread", "tid"), on="thread")
        .join(run.table("processes").select("process", "pid"), on="process")
        .select(
            "range", "tid", "pid", "name", host_ns=pl.col("end") - pl.col("start"),
        ).collect().join(projected_ranges(run.trace), on="range")
    )  # fmt: skip
    projected = (pl.col("gpu_end") - pl.col("gpu_start")).sum()
    by_name = ranges.group_by("name").agg(
        pl.len(), pl.col("host_ns").sum(), projected, pl.col("ops").sum()
    )
    threads = pl.col("pid", "tid").cast(pl.String)
    by_thread = ranges.filter(pl.col("kernels") > 0).group_by("name", threads).agg(
        pl.col("kernels", "kernel_ns").sum()
    )  # fmt: skip
    outside = run.table("ops").filter(
        pl.col("range").is_null() & pl.col("kind").cast(pl.String).is_in(["compute", "collective"])
    ).select(pl.len(), (pl.col("end") - pl.col("start")).sum()).collect()  # fmt: skip
    calls, nested = CALLS.get(name, {}), SELF_NESTED.get(name, {})
    return Projections(
        {
            key: (*rest, calls.get(key, ops))  # type: ignore[misc]
            for key, *rest, ops in by_name.rows()
        },
        {
            (key, pid, tid): (nested.get((key, pid, tid), count), ns)
            for key, pid, tid, count, ns in by_thread.rows()
        },
        outside.row(0),
    )


def _check_kernels(run: tk.Run, theirs: Projections, name: str) -> None:
    """Hold the kernels of paths against those of names, whose numbers paths leave out.

    Where a range lies in one of its own name, a path counts a kernel in both.
    """
    label_of = {
        named: f"{STYLES[style]} {label}"
        for style, named, label in _named_ranges(run, name)
        .join(run.table("paths").select("path", "label"), on="path")
        .select("style", "name", "label").unique().collect().rows()
    }  # fmt: skip
    nested = {label_of[key[0]] for key in SELF_NESTED.get(name, {})}
    table = run.breakdown("range,kernel", inclusive=True).drop_nulls("style")
    table = table.filter(pl.col("kind").is_in(["compute", "collective"]))
    columns = ("launching", "ops", "total_ns", "min_ns", "max_ns")
    ours = together(
        ((f"{STYLES[style]} {path.rpartition(' > ')[2]}", kernel), *numbers)
        for path, style, kernel, *numbers in table.select("range", "style", "name", *columns).rows()
    )
    expected = together(
        ((label_of[range_name], kernel), *numbers)
        for (range_name, kernel), numbers in theirs.by_kernel.items()
    )
    assert ours.keys() == expected.keys()
    for (label, kernel), numbers in expected.items():
        told = slice(2 if label in nested else 0, None)
        assert ours[label, kernel][told] == numbers[told], (label, kernel)


def _check(ours: Projections, theirs: Projections) -> None:
    assert ours.ranges == theirs.ranges
    assert ours.kernels == theirs.kernels
    assert ours.outside == theirs.outside


@pytest.mark.parametrize("name", TRACES)
def test_what_ranges_hold_is_what_was_recorded_of_nsys(real_run, name):
    ours = _projections_of(real_run(name), name)
    assert list(recorded_rows(ours)) == recorded(RECORDED)[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_what_ranges_hold_is_what_nsys_says_here(real_run, real_trace, by_nsys, name):
    run, theirs = real_run(name), by_nsys(projections, real_trace(name))
    _check(_projections_of(run, name), theirs)
    _check_kernels(run, theirs, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "report",
    [
        REPORTS[1],
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (REPORTS[0], *REPORTS[2:])),
    ],
)
def test_what_ranges_of_a_report_hold_is_what_nsys_says(nsys_export, by_nsys, tmp_path, report):
    export = nsys_export(report)
    run, _ = tk.ingest(export, store=tmp_path / "store")
    theirs = by_nsys(projections, export)
    _check(_projections_of(run, export.stem), theirs)
    _check_kernels(run, theirs, export.stem)


def _with_texts(run: tk.Run, *columns: str) -> pl.DataFrame:
    """Return columns of ranges, and the texts of their paths."""
    texts = run.table("path_texts").collect()
    ranges = run.table("ranges").select(*columns, "path").collect()
    return ranges.join(texts, on="path").select(*columns, path="text")


@pytest.mark.parametrize("name", TRACES)
def test_the_table_adds_up_what_its_ranges_hold(real_run, name):
    run = real_run(name)
    table = run.breakdown("range", inclusive=True).drop_nulls("style")
    paths = _with_texts(run, "range", "start", "end")
    span = (pl.col("gpu_end") - pl.col("gpu_start")).sum()
    held = (
        paths.join(projected_ranges(run.trace), on="range").group_by("path")
        .agg(pl.len().cast(pl.Int64), pl.col("ops").sum(), span)
    )  # fmt: skip
    launching = table.filter(pl.col("launching") > 0)
    columns = ("range", "launching", "ops", "projected_ns")
    assert sorted(launching.select(columns).rows()) == sorted(held.rows())
    assert (table["busy_ns"] <= table["projected_ns"]).all() or run.trace.read("devices").height > 1
    assert (table["self_busy_ns"] <= table["busy_ns"]).all()


@pytest.mark.parametrize("name", TRACES)
def test_busy_time_is_the_union_of_what_a_path_holds(real_run, name):
    """Ops get the paths of all the ranges around theirs, and unions are taken of these."""
    run = real_run(name)
    around = _with_texts(run, "range", "parent")
    ops = run.table("ops").select("range", "device", "start", "end").collect()
    held = []
    while ops.height:
        ops = ops.join(around, on="range").drop("range")
        held.append(ops.select("path", "device", "start", "end"))
        ops = ops.select("device", "start", "end", range="parent").drop_nulls("range")
    gap = pl.max_horizontal(pl.col("start") - pl.col("end").cum_max().shift(1), 0).sum()
    length = pl.col("end").max() - pl.col("start").min() - gap
    expected = (
        pl.concat(held).sort("start").group_by("path", "device").agg(busy=length)
        .group_by("path").agg(pl.col("busy").sum())
    )  # fmt: skip
    table = run.breakdown("range", inclusive=True).drop_nulls("style")
    found = table.filter(pl.col("ops") > 0).select("range", "busy_ns")
    assert sorted(found.rows()) == sorted(expected.rows())
