"""Operators, bytes, FLOPs and times against the tables that TraceLens publishes of these traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

TRACES = ("h100_qwen", "sglang_prefilldecode")
OUTER = {
    "mm": "linear", "addmm": "linear", "bmm": "matmul",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "index_select": "embedding", "gather": "embedding",
}  # fmt: skip
"""TraceLens names the operator that launches, tracekit the one around it whose sizes are known."""
RESULT_LEFT_OUT = ("mean", "max")
"""TraceLens counts one element of result, whatever dimensions are left; tracekit counts none."""


def published(path: Path) -> pl.DataFrame:
    """Return TraceLens's operators: how many, the time of their kernels, FLOPs and bytes."""
    name = pl.col("name").str.extract(r"(?:::|->)(\w+?)_?(?:$| )")
    # Of the last projection of a serving engine there is no `linear` around the `matmul`.
    outer = pl.when(pl.col("Input Dims") == "((15, 4096), (4096, 151936))").then(
        pl.lit("matmul")
    ).otherwise(name.replace(OUTER))  # fmt: skip
    number = pl.col("operation_count")
    return (
        pl.read_csv(path.with_name(f"{path.name.partition('.')[0]}.unified_perf_summary.csv"))
        .group_by(operator=outer)
        .agg(
            number=number.sum(),
            ns=1_000 * pl.col("Kernel Time (µs)_sum").sum(),
            flops=(number * pl.col("GFLOPS")).sum() * 1e9,
            moved=(number * pl.col("Data Moved (MB)")).sum() * 2**20,
            modelled=pl.col("has_perf_model").all(),
        )
    )


@pytest.fixture(params=TRACES)
def both(request: pytest.FixtureRequest, real_run, real_trace) -> tuple[str, pl.DataFrame]:
    name = f"tracelens/{request.param}"
    ours = (
        real_run(name)
        .roofline()
        .with_columns(operator=pl.col("operator").str.replace(r"^\w+::", ""))
    )
    return request.param, published(real_trace(name)).join(ours, on="operator", validate="1:1")


def test_operators_are_as_many_and_take_as_long(both, real_trace) -> None:
    trace, rows = both
    assert rows.height == {"h100_qwen": 18, "sglang_prefilldecode": 17}[trace]
    unlike = rows.filter(pl.col("number") != pl.col("operators"))
    # Four copies are no kernels: their bytes cross PCIe.
    expected = {"h100_qwen": [], "sglang_prefilldecode": [("copy", 80, 76)]}[trace]
    assert unlike.select("operator", "number", "operators").rows() == expected
    late = rows.filter((pl.col("ns") - pl.col("kernel_ns")).abs() > 10)
    told = dict(
        late.with_columns(more=pl.col("ns") - pl.col("kernel_ns")).select("operator", "more").rows()
    )
    if trace == "h100_qwen":
        # TraceLens adds the memsets that a multiplication launches for its workspace.
        assert told.pop("linear") == pytest.approx(
            _memset_ns(real_trace(f"tracelens/{trace}")), abs=50
        )
    told.pop("copy", None)
    assert told == {}


def _memset_ns(path: Path) -> float:
    """Return how long memsets ran that operators launched."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    calls = {each["args"]["correlation"]: each for each in events
             if each.get("cat") == "cuda_runtime" and "emset" in each["name"]}  # fmt: skip
    return sum(
        1_000 * each["dur"] for each in events
        if each.get("cat") == "gpu_memset" and each["args"]["correlation"] in calls
    )  # fmt: skip


def test_bytes_are_equal(both) -> None:
    _, rows = both
    known = rows.filter("modelled", pl.col("bytes").is_not_null())
    assert known.height >= 8
    exact = known.filter(~pl.col("operator").is_in(RESULT_LEFT_OUT)).with_columns(
        moved=pl.col("moved") + pl.col("operators") * _more_than_published()
    )
    # Of the copies four of 15 numbers are none of kernels: 720 bytes.
    assert exact["bytes"].to_list() == pytest.approx(exact["moved"].to_list(), rel=1e-7)
    for row in known.filter(pl.col("operator").is_in(RESULT_LEFT_OUT)).to_dicts():
        assert 0 <= row["moved"] - row["bytes"] <= 8 * row["operators"]


def _more_than_published() -> pl.Expr:
    """Return the bytes of an operator's positions and places, which TraceLens leaves out."""
    tokens, table = 15_360, 128
    more = {
        "rotary_embedding": tokens * 8 + tokens * table * 2,
        "store_cache": tokens * 8,
        "mha_batch_prefill": (16 + 16 + 15_616) * 4,
    }
    return pl.col("operator").replace_strict(more, default=0)


def test_flops_are_equal(both, real_run) -> None:
    trace, rows = both
    counted = rows.drop_nulls("flops_right")
    of = dict(counted.select("operator", pl.col("flops_right") / pl.col("flops")).rows())
    attention = of.pop("scaled_dot_product_attention", None) or of.pop("mha_batch_prefill")
    for ratio in of.values():
        # TraceLens adds an operation for each element of a bias.
        assert ratio == pytest.approx(1, rel=3e-4)
    assert attention == pytest.approx(2, rel=1e-9)  # TraceLens counts causal attention half
    causal = real_run(f"tracelens/{trace}").flops(attention="causal")
    found = dict(causal.select("operator", "flops").rows())
    theirs = dict(counted.select("operator", "flops").rows())
    name = {"h100_qwen": "scaled_dot_product_attention"}.get(trace, "aiter::mha_batch_prefill")
    expected = theirs[name.rpartition("::")[2]]
    assert found[name] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("trace", "known"), [("h100_qwen", 0.9999), ("sglang_prefilldecode", 0.9999)]
)
def test_most_time_has_a_bound(real_run, trace: str, known: float) -> None:
    assert real_run(f"tracelens/{trace}").roofline.answer().meta["known_share"] > known


def test_joined_tensors_by_hand(real_run) -> None:
    rows = real_run("tracelens/h100_qwen").roofline("operator,sizes")
    (joined,) = rows.filter(operator="cat", operators=48).to_dicts()
    # Two of 16 x 16 x 559 x 32 elements of two bytes, read and written, 48 times.
    assert joined["bytes"] == 48 * 2 * 2 * 2 * 16 * 16 * 559 * 32


def test_time_by_bound_is_that_of_all_kernels(real_run) -> None:
    run = real_run("tracelens/mi300_resnet_checkpoint")
    answer = run.roofline.answer()
    kernels = run.breakdown("kind").filter(
        pl.col("kind").cast(pl.String).is_in(["compute", "collective"])
    )
    assert sum(answer.meta["bounds"].values()) == answer.rows["kernel_ns"].sum()
    assert answer.rows["kernel_ns"].sum() <= kernels["total_ns"].sum()
    assert answer.meta["known_share"] == pytest.approx(0.9936, abs=0.0005)


@pytest.mark.parametrize("trace", TRACES)
def test_counts_and_spread_by_sizes_and_dtype(trace: str, real_run, real_trace) -> None:
    name = f"tracelens/{trace}"
    path = real_trace(name).with_name(f"{trace}.unified_perf_summary.csv")
    time = "Kernel Time (µs)_"
    # A tuple of one number has a comma behind it.
    sizes = (
        pl.col("Input Dims").str.replace_all(r"[\s]", "").str.replace_all(r",\)", ")")
        .str.replace_all(r"\(", "[").str.replace_all(r"\)", "]")
    )  # fmt: skip
    theirs = pl.read_csv(path).select(
        sizes=sizes, operator=pl.col("name").str.extract(r"::(\w+?)_?$"),
        number="operation_count", least=f"{time}min", median=f"{time}median", most=f"{time}max",
    )  # fmt: skip
    ours = (
        real_run(name).roofline("operator,sizes,dtype")
        .with_columns(operator=pl.col("operator").str.replace(r"^\w+::", ""))
    )  # fmt: skip
    keys = ["operator", "sizes"]
    both = ours.join(theirs.unique(keys, keep="none"), on=keys).filter(
        pl.len().over(keys) == 1, pl.col("operators") == pl.col("number")
    )
    assert both.height >= {"h100_qwen": 14, "sglang_prefilldecode": 14}[trace]
    for own, other in (("min_ns", "least"), ("max_ns", "most")):
        assert both[own].to_list() == pytest.approx((1_000 * both[other]).to_list(), abs=2)
    odd = both.filter(pl.col("operators") % 2 == 1)
    assert odd["median_ns"].to_list() == pytest.approx((1_000 * odd["median"]).to_list(), abs=2)
    assert both["dtype"].null_count() == both.filter(operator="cat").height
