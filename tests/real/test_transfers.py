"""What the real traces moved from GPU to GPU, and what they did not."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import tracekit as tk
from tracekit.analysis.traffic import copy_transfers
from tracekit.analysis.traffic._transfers import traffic_root
from tracekit.machine import Link, Machine

RunOf = Callable[[str], tk.Run]
CUBE_MESH = (
    (0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 5), (2, 3), (2, 6), (3, 7), (4, 5), (4, 6),
    (4, 7), (5, 6), (5, 7), (6, 7),
)  # fmt: skip
MACHINE = Machine.of(
    "cube mesh",
    {f"GPU{gpu}": {"type": "gpu"} for gpu in range(8)},
    [Link((f"GPU{one}", f"GPU{other}"), "nvlink", 1, 25 * 10**9) for one, other in CUBE_MESH],
)

ENDS = ["method", "source", "evidence", "src_device", "dst_device", "bytes"]


def _between_gpus(transfers: pl.DataFrame) -> list[tuple[object, ...]]:
    both = transfers.filter(~pl.col("method").is_in(["d2h", "h2d"]))
    return sorted(both.group_by(ENDS).len().rows())


@pytest.mark.parametrize(
    ("name", "how", "other"),
    [
        ("jacobi_p2p_nvlink_8xv100", ("p2p", "recorded", "measured"), 3),
        ("jacobi_p2p_staged_8xv100", ("staged", "same_call", "measured"), 7),
    ],
)
class TestJacobi:
    def test_the_copies_are_found_and_no_others(
        self, real_run: RunOf, name: str, how: tuple[str, ...], other: int
    ) -> None:
        transfers = copy_transfers(real_run(name).trace, MACHINE)
        assert _between_gpus(transfers) == [
            (*how, 0, other, 65_536, 2_002),
            (*how, other, 0, 65_536, 2_002),
        ]

    def test_every_copy_is_in_one_row(
        self, real_run: RunOf, name: str, how: tuple[str, ...], other: int
    ) -> None:
        run = real_run(name)
        transfers = copy_transfers(run.trace, MACHINE)
        used = pl.concat([transfers["op"], transfers["second_op"].drop_nulls()])
        copies = run.table("ops").filter(pl.col("kind").is_in(["p2p", "staged", "d2h", "h2d"]))
        assert used.sort().to_list() == copies.collect()["op"].sort().to_list()

    def test_two_gpus_have_no_root(
        self, real_run: RunOf, name: str, how: tuple[str, ...], other: int
    ) -> None:
        [root] = traffic_root(copy_transfers(real_run(name).trace)).rows(named=True)
        assert (root["pattern"], root["gpus"], root["bytes"]) == (None, 2, 2 * 2_002 * 65_536)


def test_two_calls_for_each_copy_would_be_found_too(real_run: RunOf) -> None:
    """The halves of the staged copies as if the program had made them, by two calls each."""
    trace = real_run("jacobi_p2p_staged_8xv100").trace
    named = pl.col("copy_kind").replace_strict({"DtoH": "d2h", "HtoD": "h2d"}, default=None)
    kind = pl.col("kind").cast(pl.String)
    apart = trace.read("ops").with_columns(
        correlation=pl.lit(None, pl.Int64),
        kind=pl.when(kind == "staged").then(named).otherwise(kind),
    )
    found = _between_gpus(copy_transfers(trace.with_tables({"ops": apart})))
    assert found == [
        ("staged", "same_thread", "modelled", 0, 7, 65_536, 2_002),
        ("staged", "same_thread", "modelled", 7, 0, 65_536, 2_002),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "mnist_1xa100_phases", "ddp_unet_4xa100_rank0", "transformer_rtx3070ti",
        "sendrecv_2xh100_two_processes",
    ],
)  # fmt: skip
def test_training_on_one_gpu_per_process_copies_nothing_between_gpus(
    real_run: RunOf, name: str
) -> None:
    transfers = copy_transfers(real_run(name).trace, MACHINE)
    assert _between_gpus(transfers) == []
    assert set(transfers["method"]) <= {"d2h", "h2d"}
    assert transfers.height > 0
