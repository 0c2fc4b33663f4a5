from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tracekit.model import NO_KERNELS, WORK_MISSING, Answer
from tracekit.present import with_headline

MS = 1_000_000


def told(command: str, rows: dict[str, Any], **meta: Any) -> str | None:
    answer = Answer(rows=pl.DataFrame(rows), meta=meta, command=command)
    said: str | None = with_headline(answer).get("headline")
    return said


STAGES = {
    "stage": ["FP", "BP", "OTHER"], "ops": [1, 1, 1], "exposed_ns": [30, 60, 1],
    "share": [0.3, 0.6, 0.001],
}  # fmt: skip
ITERATIONS = {"iteration": [0, 1, None], "ops": [1, 1, 1], "window_ns": [MS, 3 * MS, 9 * MS],
              "share": [0.5, 0.5, None]}  # fmt: skip


def changes(**saved: tuple[float | None, float, float]) -> dict[str, list[Any]]:
    """Return rows of whatif: of steps of 10 ms, what each change saves in ms, at least, at most."""
    rows = {"nothing": (3.0, 3.0, 3.0), **saved, "all of these": (9.0, 9.0, 9.0)}
    return {
        "change": ["measured", "unchanged, replayed", *rows],
        "dependencies": [0, 0, *(name != "nothing" for name in rows)],
        "step_ns": [10e6, 10e6, *(s and 10e6 - s * 1e6 for s, _, _ in rows.values())],
        "low_ns": [None, 10e6, *(10e6 - most * 1e6 for _, _, most in rows.values())],
        "high_ns": [None, 10e6, *(10e6 - least * 1e6 for _, least, _ in rows.values())],
        "saved_ns": [None, 0.0, *(s and s * 1e6 for s, _, _ in rows.values())],
        "unexplained_share": [0.004] * (2 + len(rows)),
    }


CHANGES = changes(a=(1.0, 0.9, 1.1), b=(2.0, 1.9, 2.1))
COUNTERS = {
    "device": [3, None, None], "host": [None, "a", "a"], "nic": [None, "ib0", "ib1"],
    "metric": ["nvlink_tx", "nic_tx", "nic_tx"], "counted_bytes": [1_000, 90, 130_000],
    "difference_bytes": [300, None, -30_000], "difference_share": [0.3, None, -0.2308],
}  # fmt: skip
BEYOND = "Largest difference beyond 0.5 %: "
NETWORK, MEANWHILE = "Most across the network: ", "meanwhile GPUs compute nothing for "
UNKNOWN = "Whether GPUs wait for input is not recorded; they copy input while no kernel runs for"
STALLED = "GPUs wait for input, or copy it while no kernel runs, for"
NICS = {
    "host": ["a", None], "nic": ["mlx5_0", None], "direction": ["out", "in"],
    "bytes": [3_000, 4_000], "utilisation": [0.5, None], "exposed_share": [None, 0.2],
}  # fmt: skip
LINKS = {
    "link": ["x", "y"], "src": ["GPU0", "GPU1"], "dst": ["GPU1", "GPU0"], "bytes": [None, 2000],
    "utilisation": [0.9, None],
}  # fmt: skip
STRAGGLERS = {"rank": [0, 1], "device": [0, 1], "collectives": [8, 8], "last": [2, 6],
              "chance_share": [0.5, 0.5], "caused_ns": [10, 5 * MS]}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "rows", "meta", "wanted"),
    [
        ("breakdown", STAGES, {"window_ns": 100, "idle_ns": 9},
         "Of the time BP 60.0 %, FP 30.0 %, idle 9.0 %"),
        ("breakdown", STAGES,
         {"window_ns": 100, "idle_ns": 9,
          "weak": [{"stage": "BP", "source": "kernel_name", "share": 0.7}]},
         "Of the time BP 60.0 %, FP 30.0 %, idle 9.0 %; weak evidence decides BP"),
        ("breakdown", STAGES, {"window_ns": 0, "idle_ns": 0}, None),
        ("flops", {"operator": ["mm"]}, {"step_flops": 1.4e11, "mfu": 0.25, "known_share": 0.5},
         ("A step computes at least 140 GFLOP on a GPU, 25.0 % of the peak (MFU); operators of "
         "50.0 % of its kernel time are known")),
        ("flops", {"operator": ["mm"]}, {"step_flops": 1.4e11, "mfu": 0.25, "known_share": 1.0},
         ("A step computes 140 GFLOP on a GPU, 25.0 % of the peak (MFU); operators of 100.0 % of "
         "its kernel time are known")),
        ("flops", {"operator": ["mm"]}, {"step_flops": 6e7, "mfu": 2.557e-4, "known_share": 0.2},
         ("A step computes at least 60 MFLOP on a GPU, 0.026 % of the peak (MFU); operators of "
         "20.0 % of its kernel time are known")),
        ("flops", {"operator": ["mm"]}, {"step_flops": None}, None),
        ("roofline", {"operator": ["mm", "relu"], "step_headroom_ns": [MS, None]},
         {"step_headroom_ns": MS + 900},
         ("1.001 ms of a step are above the bounds of its operators (modelled), most of it in mm: "
         "1.000 ms")),
        ("roofline", {"operator": ["mm"], "bound": [None]}, {},
         "Bounds are not known of any operator"),
        ("roofline", {"operator": ["mm"], "step_headroom_ns": [None]}, {"step_headroom_ns": None},
         None),
        ("scaling", {"network": [None] * 2, "gpus": [1, 8], "baseline_gpus": [1, 1],
                     "speedup": [1.0, 13.0], "efficiency": [1.0, 1.63]}, {}, None),
        ("scaling", {"network": ["lenet"] * 3, "gpus": [1, 4, 8], "baseline_gpus": [1, 1, 1],
                     "speedup": [1.0, 3.0, None],
                     "efficiency": [1.0, 0.75, None]}, {},
         "4 GPUs are 3 times as fast as 1 GPU (efficiency 75.0 %)"),
        ("scaling", {"network": ["lenet"], "gpus": [8], "baseline_gpus": [2], "speedup": [3.14],
                     "efficiency": [0.785], "speedup_from": [0.65], "speedup_to": [15.1]}, {},
         "8 GPUs are perhaps 3.14 times as fast as 2 GPUs (efficiency 78.5 %)"),
        ("scaling", {"network": ["lenet"] * 2, "method": ["p2p", "nccl"], "gpus": [4, 4],
                     "baseline_gpus": [1, 1], "speedup": [2.0, 3.0], "efficiency": [0.5, 0.75]}, {},
         "4 GPUs are 3 times as fast as 1 GPU (method nccl, efficiency 75.0 %)"),
        ("scaling", {"network": ["lenet"] * 2, "method": ["p2p", None], "gpus": [2, 4],
                     "baseline_gpus": [1, 1], "speedup": [1.5, 3.0], "efficiency": [0.75, 0.75]},
         {}, "4 GPUs are 3 times as fast as 1 GPU (method unknown, efficiency 75.0 %)"),
        ("scaling", {"network": ["lenet"], "gpus": [1], "baseline_gpus": [1], "speedup": [1.0],
                     "efficiency": [1.0]}, {},
         None),
        ("breakdown", {"stage": ["BP", "BP", "FP"], "recomputed": [False, True, None],
                       "ops": [1, 1, 1], "share": [0.5, 0.2, 0.3]}, {"window_ns": 100},
         "Largest: BP 50.0 %, FP 30.0 %, BP recomputed 20.0 %"),
        ("breakdown", {"iteration": [0, None], "iteration_name": ["0", None], "stage": ["BP", "ME"],
                       "ops": [1, 1], "share": [0.5, 0.8]}, {"window_ns": 100},
         None),
        ("breakdown", STAGES, {"window_ns": 100, "idle_ns": None},
         "Of the time BP 60.0 %, FP 30.0 %"),
        ("stragglers", {**STRAGGLERS, "last": [4, 4]}, {},
         "No rank is last more often than another: each at 4 collectives"),
        ("stragglers", STRAGGLERS, {},
         ("Rank 1 is last at 6 of 8 collectives (4 by chance), for which the others wait 5.000 ms "
          "while they run nothing else")),
        ("stragglers", {**STRAGGLERS, "chance_share": [0.5, 0.425]}, {},  # of groups of other sizes
         ("Rank 1 is last at 6 of 8 collectives (3.4 by chance), for which the others wait "
          "5.000 ms while they run nothing else")),
        ("stragglers", {"straggler_rank": [1], "straggler_device": [1], "collectives": [112],
                        "last": [14], "straggler_share": [0.25], "caused_ns": [1]}, {},
         ("Rank 1 is last at 14 of 56 collectives, for which the others wait 1 ns while they run "
          "nothing else")),
        ("stragglers", {**STRAGGLERS, "last": [0, 8]}, {},
         ("Rank 1 is last at 8 of 8 collectives, for which the others wait 5.000 ms while they run "
          "nothing else")),
        ("breakdown", ITERATIONS, {"window_ns": 1},
         "2 steps of 2.000 ms in the mean, 3.000 ms at most (step 1)"),
        ("breakdown", {**ITERATIONS, "window_ns": [2 * MS, 6 * MS, 9 * MS], "devices": 2},
         {"window_ns": 1}, "2 steps of 2.000 ms in the mean, 3.000 ms at most (step 1)"),
        ("breakdown", {**ITERATIONS, "window_ns": [2 * MS, 6 * MS, 9 * MS], "devices": [1, 2, 2]},
         {"window_ns": 1}, "2 steps of 2.667 ms in the mean, 3.000 ms at most (step 1)"),
        ("breakdown", {"device": [0, 1], "ops": [1, 1], "share": [0.2, 0.4]}, {"window_ns": 1},
         "Busiest: GPU 1 40.0 %, GPU 0 20.0 %"),
        ("breakdown", {"device": [0, 0], "pid": [7, 7], "stream": [7, 20], "ops": [1, 1],
                       "share": [0.9, 0.2]}, {"window_ns": 1},
         "Largest: GPU 0 stream 7 90.0 %, GPU 0 stream 20 20.0 %"),
        ("breakdown", {"rank": [1, None], "ops": [1, 1], "share": [0.4, 0.2]}, {"window_ns": 1},
         "Largest: rank 1 40.0 %, unknown rank 20.0 %"),
        ("breakdown", {"node": ["modal"], "ops": [1], "share": [0.4]}, {"window_ns": 1},
         "Largest: node modal 40.0 %"),
        ("idle", {"cause": ["input"], "gaps": [1], "idle_ns": [9], "share": [1.0]},
         {"window_ns": 100, "idle_ns": 9},
         "Nothing runs for 9.0 % of the time: input 100.0 % of that"),
        ("idle", {"cause": ["input"], "gaps": [1], "idle_ns": [9], "share": [1.0]},
         {"window_ns": 100, "idle_ns": 9, "cold": {"idle_ns": 6}},
         ("Nothing runs for 9.0 % of the time, 66.7 % of it in cold first steps: input 100.0 % of "
         "that")),
        ("idle", {"cause": ["input", "launch_latency"], "rests_on": ["ranges", "ranges"],
                  "gaps": [1, 1], "idle_ns": [8, 2], "share": [0.8, 0.2]},
         {"window_ns": 100, "idle_ns": 10},
         ("Nothing runs for 10.0 % of the time: input 80.0 %, launch_latency 20.0 % of that "
          "(by ranges)")),
        ("idle", {"cause": ["input", "launch_latency"], "rests_on": ["ranges", "API calls"],
                  "gaps": [1, 1], "idle_ns": [8, 2], "share": [0.8, 0.2]},
         {"window_ns": 100, "idle_ns": 10},
         "Nothing runs for 10.0 % of the time: input 80.0 %, launch_latency 20.0 % of that"),
        ("idle", {"cause": ["waiting_call"], "rests_on": ["waits, API calls"], "gaps": [1],
                  "idle_ns": [10], "share": [1.0]}, {"window_ns": 100, "idle_ns": 10},
         ("Nothing runs for 10.0 % of the time: waiting_call 100.0 % of that (by waits, API calls);"
          " waiting_call includes late launches after a wait, which is inferred")),
        ("idle", {"device": [0], "idle_ns": [9]}, {"window_ns": None, "idle_ns": 9}, None),
        ("idle", {"device": [0], "idle_ns": [9]},
         {"window_ns": 10, "idle_ns": 9, "warnings": [f"1 of 2 reports (b): {WORK_MISSING}: 9"]},
         "Nothing runs for 90.0 % of the time (GPU work is missing)"),
        ("breakdown", STAGES,
         {"window_ns": 100, "idle_ns": 10, "warnings": [f"{NO_KERNELS}: record with nsys"]},
         "Of the time BP 60.0 %, FP 30.0 %, idle 10.0 % (no kernels were recorded)"),
        ("critical-path", {"cause": ["gpu", "host"], "segments": [1, 1], "share": [0.9, 0.1]}, {},
         "The critical path is gpu 90.0 %, host 10.0 %"),
        ("whatif", CHANGES, {}, "b would save 2.000 ms (20.0 %), the most"),
        ("whatif", CHANGES, {"trusted": False},
         "b would save 2.000 ms (20.0 %), the most, by a replay that is not to be trusted"),
        ("whatif", changes(a=(0.1, 0.0, 0.2), b=(None, 0.5, 4.0)), {},
         "b would save 500.00 us (5.0 %) to 4.000 ms (40.0 %), the most"),
        ("whatif", changes(a=(None, -1.0, 3.0), b=(0.5, -0.5, 1.5)), {},
         "a would save 3.000 ms (30.0 %) at most"),
        ("whatif", changes(a=(2.0, 1.9, 2.1), b=(None, -1.0, 4.0)), {},
         "a would save 2.000 ms (20.0 %)"),
        ("whatif", changes(a=(0.0, -0.1, 0.1), b=(-0.1, -0.2, 0.1)), {},
         "No change saves anything"),
        ("whatif", changes(a=(0.0, -0.1, 0.1)) | {"unexplained_share": [0.086] * 5}, {},
         ("No change saves anything; no change shortens the 8.6 % of the steps that are "
          "unexplained")),
        ("links", LINKS, {}, "Most bytes: GPU1 → GPU0, 2 kB"),
        (
            "links", LINKS, {"collectives": 8, "collectives_of_unknown_size": 3},
            ("Most of the known bytes: GPU1 → GPU0, 2 kB; 3 of 8 collective kernels are of unknown "
             "size"),
        ),
        ("links", LINKS, {"transfers": 8, "routed": 5},
         "Most of the known bytes: GPU1 → GPU0, 2 kB; 3 of 8 transfers are on no known link"),
        ("links", LINKS | {"utilisation": [0.5] * 2}, {"origin": "assumed"},
         "Most bytes: GPU1 → GPU0, 2 kB, at 50.0 % of its assumed peak while it is busy"),
        ("links", LINKS | {"utilisation": [0.5] * 2, "evidence": ["measured", "modelled"]}, {},
         "Most bytes: GPU1 → GPU0, 2 kB (modelled), at 50.0 % of its peak while it is busy"),
        ("links", {"bytes": [1], "host": ["a"], "nic": [None]}, {}, None),
        ("links", NICS, {},
         f"{NETWORK}4 kB, received by NICs of an unnamed host; {MEANWHILE}20.0 % of the time"),
        ("links", {**NICS, "bytes": [5_000, 4_000]}, {},
         f"{NETWORK}5 kB, sent by mlx5_0 of a, at 50.0 % of its peak while it is busy"),
        ("links", {"src_host": ["a"], "dst_host": ["b"], "bytes": [5], "exposed_share": [0.5]}, {},
         f"{NETWORK}5 B, a → b; {MEANWHILE}50.0 % of the time"),
        ("links", {**NICS, "bytes": [None, None]}, {}, None),
        ("links", {"nic": ["a"], "bytes": [5], "exposed_share": [0.5]}, {}, None),
        ("links", COUNTERS, {},
         f"{BEYOND}ib1 of a, nic_tx: 30 kB or 23.1 % less than counted is attributed"),
        ("links", {**COUNTERS, "nic": [None] * 3, "difference_bytes": [300, None, 1],
                   "difference_share": [0.3, None, 0.1]}, {},
         f"{BEYOND}GPU 3, nvlink_tx: 300 B or 30.0 % more than counted is attributed"),
        ("links", {**COUNTERS, "difference_bytes": [1, 2, -3],
                   "difference_share": [0.001, 0.002, -0.003]}, {},
         "All 3 counters agree with the attributed bytes within 0.5 %"),
        ("links", {**COUNTERS, "difference_bytes": [1, None, -3],
                   "difference_share": [0.001, None, -0.003]}, {},
         "2 of 3 counters agree with the attributed bytes within 0.5 %"),
        # A counter of few bytes that is far off, and one that counted none.
        ("links", {**COUNTERS, "counted_bytes": [10**6, 100, 1], "difference_bytes": [400, 50, 0],
                   "difference_share": [0.0004, 0.5, 0.0]}, {},
         f"{BEYOND}ib0 of a, nic_tx: 50 B or 50.0 % more than counted is attributed"),
        ("links", {**COUNTERS, "counted_bytes": [10**6, 0, 1], "difference_bytes": [400, 500, 0],
                   "difference_share": [0.0004, None, 0.0]}, {},
         f"{BEYOND}ib0 of a, nic_tx: 500 B more than counted is attributed"),
        ("links", {**COUNTERS, "difference_bytes": [None] * 3}, {}, None),
        ("collectives", {"collective": ["all_reduce"], "count": [3], "duration_p50_ns": [None]}, {},
         "Most often: all_reduce, 3 calls"),
        ("collectives", {"collective": ["all_reduce"] * 2, "bytes": [4 * 10**6, 8 * 10**6],
                         "count": [3, 5], "duration_p50_ns": [MS, 2 * MS]}, {},
         "Most often: all_reduce of 8,000,000 bytes, 5 calls of 2.000 ms in the median"),
        ("collectives", {"collective": ["all_reduce", "broadcast"], "count": [3, 3],
                         "duration_p50_ns": [MS, MS]}, {}, None),
        ("stragglers", {**STRAGGLERS, "last": [0, 8]}, {"per": "step/GPU"},
         ("Rank 1 is last at 8 of 8 collectives, for which the others wait 5.000 ms a step while "
          "they run nothing else")),
        ("latency", {"operation": ["all_reduce", "send"], "size_bytes": [2_000, None],
                     "p50_ns": [3 * MS, 9 * MS]}, {},
         "Longest in the median: send of unknown size, 9.000 ms"),
        ("latency", {"operation": ["all_reduce"], "size_bytes": [16 << 20], "p50_ns": [MS]},
         {"buckets": "power2"}, "Longest in the median: all_reduce of 16 MiB or more, 1.000 ms"),
        ("latency", {"operation": ["all_reduce"], "size_bytes": [16 << 20], "p50_ns": [MS]},
         {"buckets": "exact"}, "Longest in the median: all_reduce of 16 MiB, 1.000 ms"),
        ("latency", {"operation": ["send"], "size_bytes": [None], "p50_ns": [MS]}, {},
         "Longest in the median: send of unknown size, 1.000 ms"),
        ("overhead", {"run": ["a"] * 2, "name": ["flush", "all"], "times": [1, 1],
                      "share": [0.02, 0.012]}, {}, "The profiler takes up to 1.2 % of a run (a)"),
        ("bubbles", {"pipeline_stage": [0]},
         {"pipeline": {"bubble_share": 0.42, "theory_share": 0.2727}},
         "42.0 % of the stages' time is a bubble; of equal stages 27.3 % would be"),
        ("bubbles", {"run": ["a"]}, {}, None),
        ("study", {"run": ["a", "b", None], "step_ns": [6 * MS, 2 * MS, MS]}, {},
         ("The shortest mean step is that of b, 2.000 ms; the longest is that of a, 6.000 ms "
         "(3 times)")),
        ("study", {"run": ["a"], "step_ns": [MS]}, {},
         "A step of a takes 1.000 ms in the mean"),
        ("study", {"run": ["a"], "step_ns": [None]}, {}, None),
        ("overhead", {"method": ["nccl"]},
         {"baseline": "p2p", "compared": 2, "min_percent": -3.0, "max_percent": 23.1},
         "Time over that of p2p: -3.0 % to +23.1 % in 2 configurations"),
        ("overhead", {"method": ["nccl"]}, {"compared": 0, "min_percent": None}, None),
        ("memory", {"network": ["vgg", None], "batch": [16, None], "gpu": [0, 1],
                    "training_bytes": [4e9, None]}, {},
         "Most in training: 4 GB (vgg, batch 16, GPU 0)"),
        ("memory", {"gpu": [0], "training_bytes": [None]}, {}, None),
        ("stalls", {"data_stall_ns": [1, None], "window_ns": [4, 4]}, {},
         f"{STALLED} 25.0 % of their window"),
        ("stalls", {"run": ["a", "b"], "data_stall_ns": [1, 2], "window_ns": [4, 4]}, {},
         f"{STALLED} 50.0 % of their window in b, the most"),
        ("stalls", {"data_stall_ns": [1], "window_ns": [4], "rests_on": [None]},
         {"sum_over": "3 steps of each GPU"},
         ("GPUs are not known to wait for input in 3 steps of each GPU; they copy input while no "
          "kernel runs for 25.0 % of their window")),
        ("stalls", {"data_stall_ns": [None], "window_ns": [4], "wait_ns": [None], "input_ns": [1]},
         {}, f"{UNKNOWN} 25.0 % of their window"),
        ("stalls", {"run": ["a", "b"], "data_stall_ns": [None] * 2, "window_ns": [4, 4],
                    "wait_ns": [None] * 2, "input_ns": [1, 2]},
         {}, f"{UNKNOWN} 50.0 % of their window in b, the most"),
        ("stalls", {"data_stall_ns": [1, 0], "window_ns": [2, 2], "rests_on": ["ranges", None]},
         {}, f"{STALLED} 25.0 % of their window"),
        ("info", {"command": ["a", "b", None], "available": ["yes", "no", "yes"]}, {},
         "1 of 2 features have all that they need"),
        ("sql", {"n": [1]}, {}, None),
    ],
)  # fmt: skip
def test_the_first_line_answers(
    command: str, rows: dict[str, Any], meta: dict[str, Any], wanted: str | None
) -> None:
    assert told(command, rows, **meta) == wanted


def test_an_answer_that_has_one_keeps_it_and_chosen_rows_tell_none() -> None:
    kept = Answer(rows=pl.DataFrame(STAGES), meta={"headline": "so"}, command="breakdown")
    assert with_headline(kept)["headline"] == "so"
    some = Answer(
        rows=pl.DataFrame(STAGES), meta={"window_ns": 9}, command="breakdown", is_whole=False
    )
    assert "headline" not in with_headline(some)
