"""What a trace tells of a job: literal rows, worked by hand."""

from __future__ import annotations

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis.studies import job_features
from tracekit.analysis.studies._job_features import _architecture
from tracekit.errors import MissingDataError
from tracekit.model import REPORTS

MS = 1_000_000


def two_steps() -> TraceBuilder:
    """Two steps of 100 ms on one GPU: input 10 ms, a product 40 ms, other kernels 20 ms."""
    b = TraceBuilder()
    for step, t in enumerate((0, 100 * MS)):
        b.iteration(step, t, t + 90 * MS)
        b.range(t, t + 90 * MS, f"step {step}")
        b.range(t + 1, t + 80 * MS, "forward")

        def op(name: str, at: int, start: int, end: int, t: int = t, **row: object) -> None:
            b.op(name, t + at, start=t + start * MS, end=t + end * MS, **row)

        op("copy", 10, 1, 11, kind="h2d", bytes=6_000_000, copy_kind="h2d")
        op("volta_sgemm_128x64_nn", 20, 11, 41)
        op("implicit_convolve_sgemm", 30, 41, 51)
        op("convert_kernel", 40, 51, 61)
        op("vectorized_elementwise_kernel", 50, 56, 71)
    return b


def test_volumes_and_times_of_a_step() -> None:
    found = job_features(two_steps().attributed(), {"batch": "16"}, "run")
    assert (found["job"], found["architecture"], found["workers"]) == ("run", "1w1g", 1)
    assert found["batch"] == 16
    assert found["input_bytes"] == pytest.approx(6_000_000)
    assert found["weight_bytes"] is None  # one GPU exchanges nothing, which says nothing of more
    assert found["measured_input_s"] == pytest.approx(0.010)
    assert found["measured_compute_s"] == pytest.approx(0.040)
    assert found["measured_memory_s"] == pytest.approx(0.020)  # a union: 51 to 71
    assert found["measured_weights_s"] is None
    assert "flops" not in found


def test_input_that_is_copied_between_steps_is_of_the_next_one() -> None:
    """A loader copies on a thread of its own: before the first step, in it, and before the next."""
    b = two_steps()
    for at, launch in ((-5, -5), (20, 20), (95, 95)):
        b.op("copy", at * MS, start=at * MS + launch, kind="h2d", bytes=1_000_000, thread=1)
    found = job_features(b.attributed(), {}, "run")
    assert found["input_bytes"] == pytest.approx(7_000_000)


def test_the_first_steps_can_be_left_out() -> None:
    b = two_steps()
    b.op("extra_sgemm", 60, start=72 * MS, end=82 * MS)
    trace = b.attributed()
    assert job_features(trace, {}, "run")["measured_compute_s"] == pytest.approx(0.045)
    assert job_features(trace, {}, "run", skip=1)["measured_compute_s"] == pytest.approx(0.040)


def test_one_rank_of_a_job_does_not_tell_how_many_there_are() -> None:
    b = two_steps()
    b.op("ncclKernel_AllReduce_RING_LL_Sum_float", 60, start=75 * MS, end=85 * MS,
         kind="collective")  # fmt: skip
    found = job_features(b.attributed(), {}, "run")
    assert (found["architecture"], found["workers"], found["weight_bytes"]) == (None, None, None)


def test_a_run_without_steps_or_work_has_no_features(b: TraceBuilder) -> None:
    b.range(0, 100, "forward")
    with pytest.raises(MissingDataError, match="no GPU work"):
        job_features(b.attributed(), {}, "run")
    b.op("gemm", 10)
    with pytest.raises(MissingDataError, match="no steps"):
        job_features(b.attributed(), {}, "run")


@pytest.mark.parametrize(
    ("hosts", "architecture"),
    [(["a", "a"], "AllReduce-Local"), (["a", "b"], "AllReduce-Cluster"), (["a", None], None)],
)
def test_hosts_tell_the_architecture(
    hosts: list[str | None], architecture: str | None, b: TraceBuilder
) -> None:
    for device in range(2):
        b.op("gemm", 10, device=device, thread=10 * device)
    reports = pl.DataFrame({"report": [0, 1], "file": "", "format": "", "size": 0, "host": hosts})
    trace = b.trace().with_tables({"reports": REPORTS.conform(reports)})
    assert _architecture(trace, {"gpus": 2, "method": "nccl"}) == architecture
    assert _architecture(trace, {"gpus": 1, "method": "nccl"}) == "1w1g"
    assert _architecture(trace, {"gpus": 4, "method": "nccl"}) is None
