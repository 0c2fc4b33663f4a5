"""What is known of the real traces from elsewhere: from their authors, or by counting by hand."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit as tk

MNIST = "mnist_1xa100_phases"
DDP = "ddp_unet_4xa100_rank0"
TRANSFORMER = "transformer_rtx3070ti"
SENDRECV = "sendrecv_2xh100_two_processes"
NVLINK, STAGED = "jacobi_p2p_nvlink_8xv100", "jacobi_p2p_staged_8xv100"
ALL = (MNIST, DDP, TRANSFORMER, SENDRECV, NVLINK, STAGED)

KERNEL = pl.col("kind").is_in(["compute", "collective"])
LENGTH = (pl.col("end") - pl.col("start")).alias("length")

RunOf = Callable[[str], tk.Run]


def _ops(run: tk.Run) -> pl.DataFrame:
    """All ops, with their length, and the name and id of the thread that launched them."""
    threads = run.table("threads").select("thread", thread_name="name", tid="tid").collect()
    ops = run.table("ops").with_columns(LENGTH, pl.col("kind", "stage").cast(pl.String)).collect()
    return ops.join(
        threads, left_on="launch_thread", right_on="thread", how="left", maintain_order="left"
    )


def _sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as file:
        return file.execute(query).fetchall()


def _stages(ops: pl.DataFrame) -> dict[str, int]:
    return dict(ops.group_by("stage").len().rows())


@pytest.mark.parametrize("name", ALL)
class TestEveryTrace:
    def test_launches_start_no_later_than_their_ops(self, real_run: RunOf, name: str) -> None:
        ops = _ops(real_run(name))
        assert ops.filter(pl.col("launch_start") > pl.col("start")).is_empty()
        assert ops.filter(pl.col("end") < pl.col("start")).is_empty()

    def test_ops_and_their_calls_belong_to_the_same_process(
        self, real_run: RunOf, name: str
    ) -> None:
        run = real_run(name)
        calls = run.table("calls").select("call", "process", "thread", "start", "correlation")
        ops = run.table("ops").drop_nulls("call")
        both = ops.join(calls, on="call", how="left", suffix="_of_call").collect()
        assert both.height == ops.collect().height > 0
        for ours, theirs in (
            ("process", "process_of_call"),
            ("correlation", "correlation_of_call"),
            ("launch_start", "start_of_call"),
            ("launch_thread", "thread"),
        ):
            assert (both[ours] == both[theirs]).all()

    def test_no_op_is_lost_or_doubled(self, real_run: RunOf, real_trace, name: str) -> None:
        run = real_run(name)
        tables = [
            f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{kind}"
            for kind in ("KERNEL", "MEMCPY", "MEMSET")
        ]
        rows = sum(count for query in tables for ((count,),) in [_sql(real_trace(name), query)])
        ops = _ops(run)
        assert ops.height == ops["op"].n_unique() == rows

    def test_exposed_and_idle_make_up_the_window(self, real_run: RunOf, name: str) -> None:
        run = real_run(name)
        meta = run.breakdown.answer().meta
        assert run.breakdown("stage")["exposed_ns"].sum() + meta["idle_ns"] == meta["window_ns"]
        by_device = run.breakdown("device")
        assert (by_device["busy_ns"] + by_device["idle_ns"]).to_list() == by_device[
            "window_ns"
        ].to_list()

    def test_iterations_and_what_lies_between_them_tile_the_window(
        self, real_run: RunOf, name: str
    ) -> None:
        run = real_run(name)
        if run.table("iterations").collect().is_empty():
            pytest.skip(f"{name} has no iterations")
        by_iteration, whole = run.breakdown("iteration"), run.breakdown.answer().meta
        assert by_iteration["ops"].sum() == run.table("ops").collect().height
        assert by_iteration["window_ns"].sum() == whole["window_ns"]
        untold = by_iteration["idle_ns"].sum() + by_iteration["between_steps_ns"].sum()
        assert untold == whole["idle_ns"]

    def test_the_file_is_left_as_it_was(self, real_run: RunOf, real_trace, name: str) -> None:
        path = real_trace(name)
        before = path.stat()
        real_run(name)
        after = path.stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert not [*path.parent.glob(f"{path.name}-*")]


class TestMnist:
    """Training and evaluation of a small network, all phases annotated on the main thread."""

    # Ranges of the training loop, the innermost first, and the stage of what is launched in them.
    PHASES = (
        ("^Test$", "ME"),
        ("^Optimizer[.]", "WU"),
        ("^Forward pass$", "FP"),
        ("^Backward pass$", "BP"),
        ("^(Copy to device|Data loading)$", "IO"),
    )

    def test_kernels(self, real_run: RunOf) -> None:
        kernels = _ops(real_run(MNIST)).filter(KERNEL)
        assert kernels.height == 9_345
        assert kernels["length"].sum() == 379_929_359

    def test_backward_kernels_of_the_other_thread(self, real_run: RunOf) -> None:
        run = real_run(MNIST)
        [main] = run.table("ranges").filter(name="Backward pass").collect()["thread"].unique()
        others = _ops(run).filter(KERNEL & (pl.col("launch_thread") != main))
        assert others.height == 2_360
        assert _stages(others) == {"BP": 2_360}
        assert set(others["stage_source"]) == {"backward_thread"}

    def test_every_op_has_the_stage_of_the_phase_it_was_launched_in(self, real_run: RunOf) -> None:
        """Found here once more, by comparing times with all ranges of a name."""
        run = real_run(MNIST)
        ranges, ops = run.table("ranges").collect(), _ops(run)
        left = ops.select("op", "launch_start", "stage")
        for pattern, stage in self.PHASES:
            phase = ranges.filter(pl.col("name").str.contains(pattern)).select(
                since="start", until="end"
            )
            inside = left.join_where(
                phase,
                pl.col("launch_start") >= pl.col("since"),
                pl.col("launch_start") <= pl.col("until"),
            )
            assert set(inside["stage"]) == {stage}, pattern
            left = left.join(inside, on="op", how="anti")
        # What is left was launched between the phases.
        assert left.height == 1

    def test_next_to_nothing_of_training_and_testing_is_unexplained(self, real_run: RunOf) -> None:
        run = real_run(MNIST)
        ops = _ops(run)
        outer = run.table("ranges").filter(pl.col("name").is_in(["Train", "Test"])).collect()
        assert outer.height == 2
        inside = pl.any_horizontal(
            pl.col("launch_start").is_between(start, end)
            for start, end in outer.select("start", "end").rows()
        )
        lengths = ops.filter(inside).group_by("stage").agg(pl.col("length").sum())
        by_stage = dict(lengths.rows())
        assert set(by_stage) >= {"FP", "BP", "WU", "ME", "IO"}
        assert by_stage.get("OTHER", 0) < 0.02 * sum(by_stage.values())

    def test_iterations_are_the_batches_of_training(self, real_run: RunOf) -> None:
        iterations = real_run(MNIST).table("iterations").collect()
        assert iterations["name"].to_list() == [f"Batch {number}" for number in range(59)]


class TestDataParallel:
    """Rank 0 of four: no backward range, gradient exchange by NCCL, input by DALI."""

    def test_kernels_by_the_thread_that_launched_them(self, real_run: RunOf) -> None:
        kernels = _ops(real_run(DDP)).filter(KERNEL)
        assert kernels.height == 22_564
        by_thread = kernels.group_by("thread_name").agg(pl.col("length").sum())
        assert {name: round(ns / 1e6, 1) for name, ns in by_thread.rows()} == {
            "python": 776.8,
            None: 1_157.3,
            "[DALI][WT]GPU executor": 68.5,
        }
        streams = kernels.group_by("thread_name").agg(pl.col("stream").unique().sort())
        assert dict(streams.rows()) == {
            "python": [7],
            None: [7, 20],
            "[DALI][WT]GPU executor": [17],
        }

    def test_iterations_are_the_steps(self, real_run: RunOf) -> None:
        iterations = real_run(DDP).table("iterations").collect()
        assert iterations["name"].to_list() == [f"step {number}" for number in range(59)]

    def test_the_time_of_a_step_is_what_the_authors_logged(self, real_run: RunOf) -> None:
        iterations = real_run(DDP).table("iterations").collect()
        period = iterations["start"].diff().drop_nulls().median()
        assert period == pytest.approx(31.9e6, rel=0.05)

    def test_all_reduce_is_weight_update_eight_times_per_iteration(self, real_run: RunOf) -> None:
        ops = _ops(real_run(DDP))
        exchange = ops.filter(pl.col("name").cast(pl.String).str.contains("AllReduce"))
        assert exchange.height == 472
        assert exchange["length"].sum() == 292_789_300
        assert set(exchange.select("kind", "stage", "stage_source").unique().rows()) == {
            ("collective", "WU", "gradient_exchange")
        }
        assert set(exchange["collective"]) == {"all_reduce"}
        per_iteration = exchange.group_by("iteration").len().sort("iteration")
        assert per_iteration.rows() == [(number, 8) for number in range(59)]

    def test_other_work_of_the_thread_without_a_name_is_backward(self, real_run: RunOf) -> None:
        ops = _ops(real_run(DDP)).filter(pl.col("thread_name").is_null())
        others = ops.filter(pl.col("kind") != "collective")
        assert others.filter(KERNEL).height == 11_269
        assert set(others["stage"]) == {"BP"}
        assert ops["launch_thread"].n_unique() == 1

    def test_dali_is_input(self, real_run: RunOf) -> None:
        run = real_run(DDP)
        ops = _ops(run)
        dali = ops.filter(pl.col("thread_name").str.starts_with("[DALI]"))
        assert dali.filter(KERNEL).height == 1_973
        assert set(dali["stage"]) == {"IO"}
        domains = run.table("ranges").select("range", "domain").collect()
        inside = ops.join(domains, on="range").filter(domain="DALI")
        assert inside.height == dali.height
        assert set(inside["stage"]) == {"IO"}

    def test_domains_are_those_of_the_libraries(self, real_run: RunOf) -> None:
        ranges = real_run(DDP).table("ranges").collect()
        assert set(ranges["domain"]) == {None, "DALI", "NCCL"}
        assert set(ranges.filter(domain="NCCL")["name"].str.slice(0, 4)) == {"nccl"}

    def test_most_of_the_window_is_explained(self, real_run: RunOf) -> None:
        coverage = real_run(DDP).breakdown.answer().meta["coverage"]
        assert coverage["none"] < 0.02


class TestTransformer:
    """Five warm-up steps of forward and backward, then ten times forward alone."""

    def test_kernels_and_what_the_autograd_thread_launched(self, real_run: RunOf) -> None:
        kernels = _ops(real_run(TRANSFORMER)).filter(KERNEL)
        assert kernels.height == 17_032
        backward = kernels.filter(thread_name="pt_autograd_0")
        assert backward.height == 6_135
        assert _stages(backward) == {"BP": 6_135}

    def test_warm_up_and_forward_only_are_told_apart_by_iteration(self, real_run: RunOf) -> None:
        table = real_run(TRANSFORMER).breakdown("iteration")
        assert table["iteration_name"].to_list() == [
            *(f"Warm-up Step {number}" for number in range(1, 6)),
            None,
        ]
        # Each begins with the two copies of its own input.
        assert table["ops"].to_list()[:5] == [2_458, 2_236, 2_236, 2_236, 2_236]

    def test_and_by_range(self, real_run: RunOf) -> None:
        table = real_run(TRANSFORMER).breakdown("range")
        ops = dict(table.select("range", "ops").rows())
        assert ops["(backward thread)"] == 7_235
        warm = ops["Run Benchmark > Warm-up > Warm-up Step N > Forward"]
        alone = ops["Run Benchmark > Benchmark Forward Only > Forward"]
        assert (warm, alone) == (3_640, 7_280)

    def test_forward_alone_is_forward(self, real_run: RunOf) -> None:
        run = real_run(TRANSFORMER)
        [(start, end)] = (
            run.table("ranges")
            .filter(name="Benchmark Forward Only")
            .select("start", "end")
            .collect()
            .rows()
        )
        alone = _ops(run).filter(KERNEL & pl.col("launch_start").is_between(start, end))
        assert _stages(alone) == {"FP": alone.height}
        assert alone.height == 10 * 692

    def test_the_gpu_is_named(self, real_run: RunOf) -> None:
        devices = real_run(TRANSFORMER).table("devices").collect()
        assert devices.select("device", "name", "identity").rows() == [
            (0, "NVIDIA GeForce RTX 3070 Ti", "device_table")
        ]


class TestTwoProcesses:
    """A cut of 0.3 s through two processes on a GPU each, whose correlation ids collide."""

    def test_the_ids_collide_and_no_kernel_has_two_launches(
        self, real_run: RunOf, real_trace
    ) -> None:
        by_id_alone = (
            "SELECT count(*) FROM (SELECT k.rowid FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
            " GROUP BY k.rowid HAVING count(*) > 1)"
        )
        assert _sql(real_trace(SENDRECV), by_id_alone) == [(293,)]
        kernels = _ops(real_run(SENDRECV)).filter(KERNEL)
        assert kernels.height == 4_010
        assert kernels["correlation"].n_unique() == 3_932
        assert kernels["op"].n_unique() == 4_010
        assert kernels.drop_nulls("call")["call"].n_unique() == 3_986

    def test_ops_whose_launch_was_cut_off_are_told(self, real_run: RunOf) -> None:
        run = real_run(SENDRECV)
        assert _ops(run).filter(KERNEL)["call"].null_count() == 24
        assert any(text.startswith("31 of 5,299 ops (") for text in run.warnings)

    def test_the_two_gpus_are_told_apart_without_a_description(self, real_run: RunOf) -> None:
        run = real_run(SENDRECV)
        kernels = _ops(run).filter(KERNEL)
        assert sorted(kernels.group_by("process", "device").len().rows()) == [
            (0, 0, 1_993),
            (1, 1, 2_017),
        ]
        assert run.table("devices").select("device", "identity").collect().rows() == [
            (0, "unknown"),
            (1, "unknown"),
        ]
        assert run.breakdown("device")["device"].to_list() == [0, 1]

    def test_send_and_receive_are_collectives(self, real_run: RunOf) -> None:
        kernels = _ops(real_run(SENDRECV)).filter(kind="collective")
        assert kernels.height == 66
        assert set(kernels["short_name"]) == {"ncclDevKernel_SendRecv"}
        assert set(kernels["collective"]) == {"send_recv"}

    def test_copies_that_name_no_ends_stay_on_their_gpu(self, real_run: RunOf) -> None:
        copies = _ops(real_run(SENDRECV)).filter(pl.col("kind").is_in(["d2d", "h2d", "p2p"]))
        assert copies.height == 1_020
        inside = copies.filter(kind="d2d")
        assert (inside["src_device"] == inside["device"]).all()
        assert (inside["dst_device"] == inside["device"]).all()
        assert copies.filter(kind="p2p").is_empty()

    def test_names_that_lie_among_the_strings_only(self, real_run: RunOf, real_trace) -> None:
        query = "SELECT count(*) FROM NVTX_EVENTS WHERE text IS NULL AND eventType = 59"
        assert _sql(real_trace(SENDRECV), query) == [(462,)]
        ranges = real_run(SENDRECV).table("ranges").collect()
        assert ranges["name"].null_count() == 0
        assert ranges.filter(domain="NCCL").height == 462

    def test_work_is_visible_by_range(self, real_run: RunOf) -> None:
        table = real_run(SENDRECV).breakdown("range")
        assert table.height > 10
        assert table["ops"].sum() == 5_299
        outside = table.filter(pl.col("range").cast(pl.String).str.starts_with("("))
        assert outside.select("range", "ops").rows() == [("(no launching call)", 31)]


class TestPeerCopies:
    """A solver on two GPUs of eight: of one process, with and without a link between them."""

    def test_over_nvlink(self, real_run: RunOf) -> None:
        copies = _ops(real_run(NVLINK)).filter(kind="p2p")
        by_ends = copies.group_by("device", "src_device", "dst_device").agg(
            pl.len(), pl.col("bytes").min().alias("least"), pl.col("bytes").max().alias("most"),
            pl.col("length").sum(),
        )  # fmt: skip
        assert {row[:3]: (*row[3:6], round(row[6] / 1e6, 3)) for row in by_ends.rows()} == {
            (0, 0, 3): (2_002, 65_536, 65_536, 8.187),
            (3, 3, 0): (2_002, 65_536, 65_536, 7.832),
        }

    def test_through_the_host(self, real_run: RunOf) -> None:
        ops = _ops(real_run(STAGED))
        assert ops.filter(kind="p2p").is_empty()
        halves = ops.filter(kind="staged").group_by(
            "copy_kind", "device", "src_device", "dst_device", "bytes"
        )
        assert set(halves.len().rows()) == {
            ("DtoH", 0, 0, None, 65_536, 2_002),
            ("DtoH", 7, 7, None, 65_536, 2_002),
            ("HtoD", 0, None, 0, 65_536, 2_002),
            ("HtoD", 7, None, 7, 65_536, 2_002),
        }
        left = ops.filter(pl.col("kind").is_in(["d2h", "h2d"]))
        assert set(left.group_by("kind", "device").len().rows()) == {
            ("d2h", 0, 2_002),
            ("d2h", 7, 1_001),
        }

    @pytest.mark.parametrize(("name", "active"), [(NVLINK, [0, 3]), (STAGED, [0, 7])])
    def test_all_eight_gpus_are_listed(self, real_run: RunOf, name: str, active: list[int]) -> None:
        devices = real_run(name).table("devices").collect()
        assert devices["device"].to_list() == list(range(8))
        assert devices.filter("active")["device"].to_list() == active
        assert set(devices["name"]) == {"Tesla V100-SXM2-16GB"}
        assert devices["uuid"].n_unique() == 8
