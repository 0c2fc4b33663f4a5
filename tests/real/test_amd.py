"""Recordings of AMD's and XLA's profilers that others published, against what plain SQL says."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracekit.attribution import Rules, attribute
from tracekit.engine import union_length
from tracekit.model import Trace
from tracekit.sources import read

DURATION = pl.col("end") - pl.col("start")


@pytest.fixture(scope="session")
def published(real_trace: Callable[[str], Path]) -> Callable[[str], Path]:
    """Give a file of the folder of newer formats; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = real_trace("ddp_unet_4xa100_rank0").with_name("new_formats") / name
        if not path.exists():
            pytest.skip(f"no {name} beside the real traces")
        return path

    return find


def _sums(trace: Trace, table: str, *by: str) -> dict[Any, tuple[int, int]]:
    rows = trace.read(table).group_by(by).agg(pl.len(), DURATION.sum().alias("ns"))
    return {key[0] if len(by) == 1 else tuple(key): (n, ns) for *key, n, ns in rows.rows()}


@pytest.fixture(scope="session")
def rpd_path(published: Callable[[str], Path]) -> Path:
    return published("rpd/mytrace.rpd.gz")


@pytest.fixture(scope="session")
def rpd(rpd_path: Path) -> Trace:
    return read(rpd_path)


@pytest.fixture(scope="session")
def in_rpd(
    rpd_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[tuple[Any, ...]]]:
    copy = tmp_path_factory.mktemp("rpd") / "t.rpd"
    copy.write_bytes(gzip.decompress(rpd_path.read_bytes()))

    def ask(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(copy)) as db:
            return db.execute(query).fetchall()

    return ask


class TestRpd:
    def test_ops_add_up(self, rpd):
        assert _sums(rpd, "ops", "kind") == {
            "compute": (1_228 + 7_720, 316_231_882 + 90_905_793),
            "h2d": (350, 2_570_452), "d2h": (22, 747_692), "d2d": (804, 6_169_262),
        }  # fmt: skip
        assert rpd.read("ops").select(DURATION.sum()).item() == 416_625_081

    def test_each_op_is_of_its_call(self, rpd, in_rpd):
        wanted = in_rpd(
            "SELECT o.start, o.end, l.api_id FROM rocpd_op o JOIN rocpd_api_ops l ON l.op_id = o.id"
        )
        first = in_rpd("SELECT min(s) FROM (SELECT min(start) s FROM rocpd_api UNION "
                      "SELECT min(start) FROM rocpd_op)")[0][0]  # fmt: skip
        ops = rpd.read("ops").select("start", "end", "correlation")
        moved = [(start - first, end - first, call) for start, end, call in wanted]
        assert sorted(ops.rows()) == sorted(moved)

    def test_calls_and_markers_add_up(self, rpd):
        calls = _sums(rpd, "calls", "name")
        assert calls["hipLaunchKernel"] == (972, 5_146_004)
        assert calls["hipExtModuleLaunchKernel"] == (256, 1_412_683)
        assert calls["hipGraphLaunch"] == (20, 10_457_250)
        assert rpd.read("calls").height == 2_830
        ranges = rpd.read("ranges")
        markers = ranges.filter(pl.col("name") != "run_to_completion")
        assert (markers.height, markers.select(DURATION.sum()).item()) == (11_884, 3_159_460_746)

    def test_each_launch_of_the_graph_has_all_of_its_ops(self, rpd):
        launches = rpd.read("calls").filter(pl.col("name").cast(pl.String) == "hipGraphLaunch")
        ops = rpd.read("ops").join(launches.select("correlation"), on="correlation")
        assert ops.group_by("correlation").len()["len"].to_list() == [418] * 20

    def test_launch_sizes_are_of_threads(self, rpd, in_rpd):
        wanted = in_rpd(
            "SELECT l.op_id, gridX * gridY * gridZ * iif(n.string = 'hipExtModuleLaunchKernel', 1,"
            " workgroupX * workgroupY * workgroupZ) FROM rocpd_kernelapi k"
            " JOIN rocpd_api a ON a.id = k.api_ptr_id JOIN rocpd_string n ON n.id = a.apiName_id"
            " JOIN rocpd_api_ops l ON l.api_id = a.id"
        )
        sizes = rpd.read("ops")["launch_size"].drop_nulls().to_list()
        assert sorted(sizes) == sorted(size for _, size in wanted)


def test_an_rpd_adds_up_as_its_own_converter_says(published):
    trace = read(published("rpd/matmul_result.rpd"))
    assert _sums(trace, "ops", "report") == {0: (85, 183_918_056)}
    tracer = 5  # rows of the tracer itself, which are no calls of the program
    assert trace.read("calls").height == 125 - tracer


def test_rocprofv3_json_adds_up(published):
    trace = read(published("rocprofv3/908_results.json.gz"))
    ops = trace.read("ops")
    assert (ops.height, ops.select(DURATION.sum()).item()) == (43_915, 4_441_741_378)
    assert union_length(ops, ())["length"].item() == 4_233_112_334
    assert ops["end"].max() == 63_873_104_615_494 - 63_857_982_592_000
    names = _sums(trace, "ops", "name")
    assert names["ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"] == (
        1_310, 4_158_756_678,
    )  # fmt: skip
    assert _sums(trace, "ops", "kind")["memset"][0] == 3_213
    assert _sums(trace, "ops", "kind")["unknown"][0] == 3_153
    gemms = ops.filter(pl.col("name").cast(pl.String).str.starts_with("Cijk_"))
    counts = gemms["name"].cast(pl.String).str.slice(0, 14).value_counts()
    assert dict(counts.rows()) == {
        "Cijk_Alik_Bljk": 1_750, "Cijk_Ailk_Bljk": 50 + 1_800, "Cijk_Ailk_Bjlk": 1_750,
    }  # fmt: skip
    assert trace.read("devices").select("device", "sm_count").rows() == [(0, 256)]


def test_a_database_made_of_an_rpd_by_the_rules_of_rocprofv3_adds_up(published, rpd):
    trace = read(published("rocpd/made_from_mytrace_schema3.db.gz"))
    assert _sums(trace, "ops", "kind") == {
        "compute": (1_228 + 7_720, 407_137_675), "h2d": (350, 2_570_452), "d2h": (22, 747_692),
        "d2d": (164, 2_875_051),
    }  # fmt: skip
    sizes = trace.read("ops").group_by("kind").agg(pl.col("bytes").sum())
    assert dict(sizes.filter(pl.col("bytes") > 0).rows()) == {
        "h2d": 563_008, "d2h": 672, "d2d": 4_295_133_376,
    }  # fmt: skip
    calls = trace.read("calls")
    assert (calls.height, calls.select(DURATION.sum()).item()) == (2_830, 366_724_554)
    ranges = trace.read("ranges")
    assert (ranges.height, ranges.select(DURATION.sum()).item()) == (11_884, 3_159_460_746)
    launched = trace.read("ops").filter(pl.col("kind") == "compute").join(
        calls.select("correlation", call_name="name"), on="correlation"
    )  # fmt: skip
    assert dict(launched["call_name"].cast(pl.String).value_counts().rows()) == {
        "hipExtModuleLaunchKernel": 256, "hipLaunchKernel": 972, "hipGraphLaunch": 7_720,
    }  # fmt: skip
    in_rpd = rpd.read("ops").filter(pl.col("kind") == "compute")
    assert sorted(launched["name"].to_list()) == sorted(in_rpd["name"].to_list())
    assert trace.warnings == ()


XPLANES = {
    "mi300__jax_conv_minimal_legacy__chi-mi300x-013.ord.vultr.cpe.ice.amd.com": {
        (0, "d2d"): (53, 889_028), (7, "compute"): (25, 3_586_493),
    },
    "test_data_jax_te_fused_attn_categorization__934987a2fc2f": {
        (0, "compute"): (130, 11_967_103), (0, "memset"): (20, 166_482),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", XPLANES)
def test_profiles_of_xla_add_up(published, name):
    trace = read(published(f"xplane/{name}.xplane.pb"))
    assert _sums(trace, "ops", "device", "kind") == XPLANES[name]
    calls = set(trace.read("calls")["correlation"].to_list())
    assert set(trace.read("ops")["correlation"].to_list()) <= calls


def test_passes_of_xla_are_told_by_paths(published):
    found = read(
        published("xplane/test_data_jax_te_fused_attn_categorization__934987a2fc2f.xplane.pb")
    )
    trace = attribute(found, Rules.load(None, None))
    assert _sums(trace, "ops", "stage", "stage_source")["BP", "nvtx"] == (75, 6_523_815)
    assert _sums(trace, "ops", "stage", "stage_source")["FP", "nvtx"] == (50, 4_251_837)
    unnamed = trace.read("ops").filter(pl.col("stage_source") != "nvtx")
    assert (unnamed.height, unnamed.select(DURATION.sum()).item()) == (25, 1_357_933)
    assert trace.read("iterations").height == 5


def test_a_pytorch_trace_of_amd_adds_up(published):
    """Ops have the driver's number, which is none of the descriptions: these all agree."""
    trace = read(published("kineto_amd/mi210__gpu_only_trace__gpu_only_trace.json.gz"))
    assert _sums(trace, "ops", "device", "kind") == {(1, "compute"): (562, 5_343_422)}
    names = pl.col("name").cast(pl.String)
    for part, count, ns in (
        ("igemm_fwd", 20, 564_776), ("igemm_bwd", 19, 511_181), ("igemm_wrw", 20, 544_618),
        ("batch_norm_backward", 20, 844_938),
    ):  # fmt: skip
        ops = trace.read("ops").filter(names.str.contains(part))
        assert (ops.height, ops.select(DURATION.sum()).item()) == (count, ns)
    assert trace.read("devices").select("device", "name", "identity").rows() == [
        (1, "AMD Instinct MI210", "assumed")
    ]
