"""`tracekit links`, `collectives` and `topology`, from the sample traces and from wrong input."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from cli_helpers import SAMPLES, TOPOLOGY, document, tracekit

from tracekit.analysis.communication.questions import _LINK_KEYS as KEYS
from tracekit.analysis.traffic._links import LINK_KEYS
from tracekit.cli._options import complete_keys
from tracekit.cli._topology import complete_machine
from tracekit.errors import UsageError
from tracekit.machine import read_topology
from tracekit.support.quantities import parse_count

SCHEMAS = Path(__file__).parents[2] / "schemas" / "json"
P2P = SAMPLES / "p2p_2gpu_start_end.sqlite"


def test_the_keys_are_those_of_the_analysis() -> None:
    assert tuple(LINK_KEYS) == KEYS
    assert list(complete_keys(KEYS, "link,st")) == ["link,stage"]


def test_peer_copies_of_the_sample(store: Path) -> None:
    found = document("links", P2P, "--by", "pair", "--topology", TOPOLOGY)
    assert found["meta"]["origin"] == "file"
    pairs = {(row["src_device"], row["dst_device"]): row for row in found["rows"]}
    assert set(pairs) == {(0, 1), (1, 0)}
    assert {row["evidence"] for row in pairs.values()} == {"measured"}
    assert {row["route"] for row in pairs.values()} == {"GPU0>GPU1", "GPU1>GPU0"}
    whole = document("links", P2P, "--by", "method")["rows"]
    p2p = next(row for row in whole if row["method"] == "p2p")
    assert p2p["bytes"] == sum(row["bytes"] for row in pairs.values())


def test_modelled_rows_say_so(stored: Path) -> None:
    alone = document("links", "--by", "method")["rows"]
    assert {row["method"] for row in alone} == {"h2d", "d2h"}
    sized = document("links", "--by", "method", "--bytes", "all_reduce=8MB")["rows"]
    nccl = next(row for row in sized if row["method"] == "nccl")
    assert nccl["evidence"] == "modelled"
    # 19 all-reduces of 8 MB on 4 GPUs: 2 (n - 1) / n x S from each of n GPUs.
    assert nccl["bytes"] == 19 * 2 * 3 * 8_000_000


def test_collectives_of_the_sample(stored: Path) -> None:
    found = document("collectives", "--bytes", "all_reduce=8MB")
    row = next(row for row in found["rows"] if row["collective"] == "all_reduce")
    assert (row["count"], row["participants"]) == (19, 4)
    assert row["bytes_source"] == "user"
    assert row["evidence"] == "modelled"
    busy = row["duration_p50_ns"]
    assert row["algorithm_bandwidth_gb_s"] == pytest.approx(8_000_000 / busy)
    assert row["bus_bandwidth_gb_s"] == pytest.approx(8_000_000 / busy * 1.5)


def test_notes_say_what_the_numbers_stand_on(stored: Path) -> None:
    text = tracekit("links", "--parameters", "1M", "--bytes", "all_reduce=8MB").stdout
    assert "window" in text
    assert "machine " in text
    assert "80 collective kernels, 76 of known size" in text
    assert "2 (n - 1) S for n = 4 GPUs and gradients of S = 4 MB" in text
    text = " ".join(tracekit("links").stdout.split())
    assert "80 of 80 collective kernels are of unknown size" in text
    assert "--nccl-log or --bytes" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["links", "ddp", "--topology", "{topo}"],
            "a topology of 2 GPUs .* cannot carry a run on 4",
        ),
        (["links", "ddp", "--topology", "dgx9"], "no topology file and no preset 'dgx9'"),
        (["links", "ddp", "--by", "wire"], "no links by 'wire': choose among link, pair"),
        (["links", "ddp", "--bytes", "all_reduce"], "'all_reduce' is not the size of a collective"),
        (["links", "ddp", "--bytes", "allreduce=3MB"], "is not the size of a collective"),
        (["links", "ddp", "--bytes", "reduce=1", "--bytes", "reduce=2"], "given twice"),
        (["links", "ddp", "--parameters", "many"], "'many' is not a number: write it as 60M"),
        (["links", "ddp", "--nccl-log", "{topo}"], "no NCCL INFO lines in .*: set NCCL_DEBUG=INFO"),
        (["links", "ddp", "--nccl-log", "{other}"], "is of another run"),
        (["collectives", "ddp", "--nccl-log", "{other}"], "is of another run"),
        (["links", "ddp", "--drawing", "picture.bmp"], "picture.bmp"),
        (["collectives", "ddp", "--by", "wire"], "wire"),
        (["topology", "show", "no-such-run"], "no-such-run"),
        (["topology", "check", "{skewed}"], "GPU0.*GPU1"),
        (["topology", "check", "nothing.txt"], "nothing.txt"),
        (["topology", "check", "{topo}", "--topology", "dgx1v"], "--topology is for a run"),
    ],
)
def test_wrong_input_is_one_message(
    stored: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    skewed = tmp_path / "skewed.txt"
    skewed.write_text(TOPOLOGY.read_text().replace("GPU1\tNV2", "GPU1\tNV1"))
    other = tmp_path / "other.log"
    other.write_text(
        "node:99:99 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\n"
        "node:98:98 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 busId 2000 - Init COMPLETE\n"
    )
    files = {"topo": TOPOLOGY, "other": other, "skewed": skewed, "trace": P2P}
    done = tracekit(*(word.format(**files) for word in words))
    assert done.exit_code == 2, done.stdout
    assert "Traceback" not in done.stderr

    assert re.search(message, " ".join(done.stderr.split())), done.stderr


def test_a_topology_is_imported_checked_and_shown(tmp_path: Path) -> None:
    toml = tmp_path / "machine.toml"
    assert tracekit("topology", "import", TOPOLOGY, "--output", toml).exit_code == 0
    assert read_topology(toml).nvlink_matrix() == [[0, 2], [2, 0]]
    assert tracekit("topology", "import", "dgx1v").stdout.startswith("version = 1")
    rows = document("topology", "show", str(toml))["rows"]
    assert [row["GPU1"] for row in rows] == ["NV2", "X"]
    checked = tracekit("topology", "check", TOPOLOGY)
    # It does not tell the bandwidths of its links, which names of GPUs do.
    assert checked.exit_code == 0
    assert "nothing is odd" in checked.stdout
    assert "1 nvlink link of unknown bandwidth" in checked.stdout
    lone = tmp_path / "lone.toml"
    lone.write_text("version = 1\n[nodes]\nGPU = 2\n")
    assert tracekit("topology", "check", lone).exit_code == 1
    assert "dgx1v" in complete_machine("dgx1")


@pytest.mark.slow
def test_figures_are_files_that_open_offline(stored: Path, tmp_path: Path) -> None:
    options = [
        word for name in ("matrix", "drawing", "timeline")
        for word in (f"--{name}", tmp_path / f"{name}.html")
    ]  # fmt: skip
    assert tracekit("links", "--bytes", "all_reduce=8MB", *options).exit_code == 0
    assert tracekit("topology", "show", "dgx2", "--drawing", tmp_path / "m.html").exit_code == 0
    for name in ("matrix", "drawing", "timeline", "m"):
        page = (tmp_path / f"{name}.html").read_text()
        assert "plotly" in page.lower()
        assert 'src="http' not in page


@pytest.mark.parametrize(
    ("text", "count"), [("60M", 60_000_000), ("1.3B", 1_300_000_000), ("7", 7), ("2k", 2000)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count
    with pytest.raises(UsageError):
        parse_count(f"{text}x")


PCIE = """
version = 1
title = "Two GPUs without NVLinks"
source = "made for a test"

[nodes]
GPU = 2
CPU = 1

[[links]]
type = "pcie"
bandwidth = 15_754_000_000
between = "GPU*-CPU0"
"""


@pytest.mark.slow
def test_a_run_is_checked_against_its_machine(store: Path, tmp_path: Path) -> None:
    """The sample's peer copies are faster than PCIe; two V100 of a board tell no route."""
    untold = json.loads(tracekit("topology", "check", P2P, "--format", "json").stdout)
    [problem] = [row["problem"] for row in untold["rows"]]
    assert "routes between its GPUs are unknown" in problem
    pcie = tmp_path / "pcie.toml"
    pcie.write_text(PCIE)
    done = tracekit("topology", "check", P2P, "--topology", str(pcie), "--format", "json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["run"] == "p2p_2gpu_start_end"
    assert all("are faster than GPU" in row["problem"] for row in found["rows"])
    assert len(found["rows"]) == 2
    links = document("links", P2P, "--topology", str(pcie))
    assert any("fuller than full" in text for text in links["meta"]["warnings"])
    whole = tracekit("topology", "check", P2P, "--topology", TOPOLOGY)
    assert whole.exit_code == 0
    assert "fuller than full" not in str(document("links", P2P, "--topology", TOPOLOGY)["meta"])


def an_h100_job(folder: Path) -> list[Path]:
    """Eight ranks at an NVSwitch, as PyTorch's profiler records them: one all-reduce of 50 MB."""
    files = []
    for rank in range(8):
        args = {
            "External id": 1, "Collective name": "allreduce", "In msg nelems": 25_000_000,
            "Out msg nelems": 25_000_000, "Group size": 8, "dtype": "BFloat16",
            "Process Group Name": "0", "Process Group Ranks": str([*range(8)]), "Rank": rank,
        }  # fmt: skip
        launch = {"External id": 1, "correlation": 1}
        kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        events = [
            ("cpu_op", "record_param_comms", 1, 1_000, 20, args),
            ("cuda_runtime", "cudaLaunchKernelExC", 1, 1_005, 5, launch),
            ("kernel", kernel, 20, 1_030, 400,
             {**args, **launch, "device": rank, "stream": 20}),
        ]  # fmt: skip
        content = {
            "schemaVersion": 1, "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "hostName": "h", "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 8},
            "deviceProperties": [{"id": n, "name": "NVIDIA H100 80GB HBM3"} for n in range(8)],
            "traceEvents": [
                {"ph": "X", "cat": cat, "name": name, "pid": 100 + rank, "tid": thread, "ts": at,
                 "dur": length, "args": more}
                for cat, name, thread, at, length, more in events
            ],
        }  # fmt: skip
        files.append(folder / f"rank{rank}.json")
        files[-1].write_text(json.dumps(content))
    return files


@pytest.mark.slow
def test_bounds_where_a_ring_or_nvls_may_have_run(tmp_path: Path, store: Path) -> None:
    """A ring moves 87.5 MB of 50 over each link, NVLS 56.25; in every table, as JSON and drawn."""
    assert tracekit("ingest", *an_h100_job(tmp_path), "--run", "job").exit_code == 0
    links = document("links", "job")
    jsonschema.validate(links, json.loads((SCHEMAS / "links.schema.json").read_text()))
    bounds = {
        key: {(row["bytes"], row["least_bytes"], row["most_bytes"], row["evidence"])
              for row in document("links", "job", "--by", key)["rows"]}
        for key in ("link", "pair", "rank")
    }  # fmt: skip
    assert bounds == {
        "link": {(None, 56_250_000, 87_500_000, "modelled between")},
        "pair": {(None, 0, 43_750_000, "modelled between")},
        "rank": {(None, 56_250_000, 87_500_000, "modelled between")},
    }
    collectives = document("collectives", "job")
    jsonschema.validate(collectives, json.loads((SCHEMAS / "collectives.schema.json").read_text()))
    [row] = collectives["rows"]
    told = ("bytes", "algorithm", "least_gpu_bytes", "most_gpu_bytes")
    assert [row[name] for name in told] == [50_000_000, "ring or nvls", 56_250_000, 87_500_000]
    drawn = [tmp_path / "matrix.html", tmp_path / "machine.html"]
    assert tracekit("links", "job", "--matrix", drawn[0], "--drawing", drawn[1]).exit_code == 0
    assert "0.0 to 43.8*" in drawn[0].read_text()
    assert "31.2 % to 48.6 %" in drawn[1].read_text()
