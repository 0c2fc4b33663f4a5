"""Totals of real traces are those of NVIDIA's `nsys stats`.

Where it differs on purpose:

- A range of a domain that nobody announced is printed by nsys without the domain, which tracekit
  infers from what the domain holds.
- A domain that was announced twice makes nsys count its ranges twice.
"""

from __future__ import annotations

import polars as pl
import pytest
from nsys_builder import NsysBuilder
from nsys_stats import STYLES, TRACES, UNANNOUNCED, Stats, recorded, recorded_rows, stats

import tracekit as tk
from tracekit.sources import read

OPERATIONS = {
    "[CUDA memcpy HtoD]": "[CUDA memcpy Host-to-Device]",
    "[CUDA memcpy DtoH]": "[CUDA memcpy Device-to-Host]",
    "[CUDA memcpy DtoD]": "[CUDA memcpy Device-to-Device]",
    "[CUDA memcpy PtoP]": "[CUDA memcpy Peer-to-Peer]",
    "[CUDA memset]": "[CUDA memset]",
}


def _stats_of(run: tk.Run, unannounced: list[str]) -> Stats:
    """Say what tracekit knows of a run in the words of `nsys stats`."""
    length = pl.col("end") - pl.col("start")
    named = {
        name: (ops, ns) for name, ops, ns in
        run.breakdown("kernel").group_by("name").agg(pl.col("ops", "total_ns").sum()).rows()
    }  # fmt: skip
    moved = (
        run.table("ops")
        .filter(pl.col("bytes").is_not_null())
        .group_by(pl.col("name").cast(pl.String))
        .agg(pl.col("bytes").sum())
        .collect()
    )
    domain = pl.when(~pl.col("domain").is_in(unannounced)).then(pl.col("domain") + ":")
    ranges = (
        run.table("ranges")
        .group_by("style", pl.concat_str(domain, "name", ignore_nulls=True).alias("full"))
        .agg(pl.len(), length.sum().alias("ns"))
        .collect()
        .rows()
    )
    return Stats(
        {name: sums for name, sums in named.items() if name not in OPERATIONS},
        {OPERATIONS[name]: sums for name, sums in named.items() if name in OPERATIONS},
        {OPERATIONS[name]: f"{size / 1e6:.3f}" for name, size in moved.rows()},
        {f"{STYLES[style]} {name}": (count, ns) for style, name, count, ns in ranges},
    )


@pytest.mark.parametrize("name", TRACES)
def test_totals_are_those_recorded_of_nsys(real_run, name):
    ours = _stats_of(real_run(name), UNANNOUNCED.get(name, []))
    assert list(recorded_rows(ours)) == recorded()[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_totals_are_those_of_nsys_here(real_run, real_trace, by_nsys, name):
    ours = _stats_of(real_run(name), UNANNOUNCED.get(name, []))
    theirs = by_nsys(stats, real_trace(name))
    assert ours.kernels == theirs.kernels
    assert ours.memory == theirs.memory
    # Later versions print a colon before the names of the default domain.
    assert ours.ranges == {
        name.replace(" :", " ", 1): totals for name, totals in theirs.ranges.items()
    }
    assert {name: float(size) for name, size in ours.megabytes.items()} == pytest.approx(
        {name: float(size) for name, size in theirs.megabytes.items()}, abs=0.001
    )


@pytest.mark.slow
def test_a_domain_announced_twice_is_counted_once_and_by_nsys_twice(tmp_path, by_nsys):
    with NsysBuilder(tmp_path / "t.sqlite", schema="3.7.2") as nsys:
        nsys.domain(100, 1, "NCCL", start=1)
        nsys.domain(100, 1, "NCCL", start=2, tid=101)
        nsys.push_pop(10, 30, "ncclAllReduce", domain=1, rangeId=1)
        nsys.push_pop(40, 50, "forward", rangeId=2)
        nsys.kernel(20, 25)
        nsys.memset(26, 27)
    theirs = by_nsys(stats, nsys.path).ranges
    assert theirs["PushPop forward"] == (1, 10)
    assert theirs["PushPop NCCL:ncclAllReduce"] == (2, 40)
    ours = read(nsys.path).read("ranges")
    assert ours.select("domain", "name", "start", "end").rows() == [
        ("NCCL", "ncclAllReduce", 10, 30),
        (None, "forward", 40, 50),
    ]
