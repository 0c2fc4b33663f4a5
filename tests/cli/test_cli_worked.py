"""Worked numbers of the studies, each by the command that docs/studies.md names for it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import tracekit
from nsys_builder import NsysBuilder

US = 1000
IMAGES = 256 * 1024
DECK = (
    ("lenet", 16, 1.37, 2.76, 1.96), ("lenet", 32, 1.38, 2.84, 2.04),
    ("lenet", 64, 1.40, 2.89, 2.36),
    ("alexnet", 16, 1.24, 2.15, 1.55), ("alexnet", 32, 1.25, 2.36, 1.76),
    ("alexnet", 64, 1.27, 2.97, 2.37), ("resnet", 16, 1.08, 3.62, 3.29),
    ("resnet", 64, 1.13, 9.48, 9.15), ("googlenet", 16, 0.92, 2.35, 2.24),
    ("googlenet", 32, 0.94, 3.64, 3.55), ("googlenet", 64, 0.97, 6.17, 6.07),
    ("inception", 16, 1.04, 3.89, 3.60), ("inception", 32, 1.06, 6.70, 6.06),
    ("inception", 64, 1.09, 11.01, 10.78),
)  # fmt: skip
"""Memory before training, and in training of GPU 0 and the others, GB, of the slides."""


def rows(*words: str | Path) -> list[dict[str, Any]]:
    done = tracekit(*words, "--format", "json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


def times(folder: Path, head: str, *lines: str) -> Path:
    path = folder / "times.csv"
    path.write_text("\n".join([f"network,batch,gpus,method,{head}", *lines]))
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "memory.csv"
    lines = ["network,batch,gpu,pre_bytes,training_bytes"]
    for network, batch, before, root, other in DECK:
        for gpu, used in ((0, root), (1, other)):
            lines.append(f"{network},{batch},{gpu},{before * 1e9:.0f},{used * 1e9:.0f}")
    path.write_text("\n".join(lines))
    return path


def test_d1_time_of_an_epoch(tmp_path: Path) -> None:
    """Steps of 10 ms; 262,144 images in batches of 16, 32 and 64 for each of 1 to 8 GPUs."""
    batches, gpus = (16, 32, 64), (1, 2, 4, 8)
    lines = [f"lenet,{b},{n},p2p,10" for b in batches for n in gpus]
    table = times(tmp_path, "step_ms", *lines)
    found = rows("scaling", "--table", table, "--images", str(IMAGES))
    told = {(row["batch"], row["gpus"]): row["iterations_per_epoch"] for row in found}
    assert [told[16, n] for n in gpus] == [16384, 8192, 4096, 2048]
    assert [told[32, n] for n in gpus] == [8192, 4096, 2048, 1024]
    assert [told[64, n] for n in gpus] == [4096, 2048, 1024, 512]
    assert all(row["time_ns"] == row["iterations_per_epoch"] * 10e6 for row in found)


def test_d2_strong_scaling(tmp_path: Path) -> None:
    """Speedups 1.62, 2.37, 3.36 by p2p and 1.56, 2.27, 2.77 by NCCL."""
    known = {"p2p": (1, 1.62, 2.37, 3.36), "nccl": (1, 1.56, 2.27, 2.77)}
    lines = [
        f"lenet,16,{n},{method},{1000 / speedup!r}"
        for method, speedups in known.items()
        for n, speedup in zip((1, 2, 4, 8), speedups, strict=True)
    ]
    found = rows("scaling", "--table", times(tmp_path, "epoch_s", *lines))
    efficiencies = {
        method: [100 * row["efficiency"] for row in found if row["method"] == method][1:]
        for method in known
    }
    assert efficiencies["p2p"] == pytest.approx([81, 59.25, 42.0])
    assert efficiencies["nccl"] == pytest.approx([78, 56.75, 34.625])
    serial = {row["gpus"]: row["karp_flatt"] for row in found if row["method"] == "p2p"}
    assert [round(serial[n], 4) for n in (2, 4, 8)] == [0.2346, 0.2293, 0.1973]


def test_d3_weak_scaling(tmp_path: Path) -> None:
    """T(1) = 200, Ts(8) = 30 and Tw(8) = 211.2 s."""
    lines = ["lenet,16,1,p2p,200,", "lenet,16,8,p2p,30,strong", "lenet,16,8,p2p,211.2,weak"]
    table = times(tmp_path, "epoch_s,scaling", *lines)
    weak = rows("scaling", "--table", table, "--mode", "weak")[-1]
    assert weak["reduction_percent"] == pytest.approx(12)
    assert round(100 * weak["efficiency"], 2) == 94.70
    assert round(weak["speedup"], 3) == 7.576
    assert round(rows("scaling", "--table", table)[-1]["speedup"], 3) == 6.667


def test_d4_overhead_of_nccl(tmp_path: Path) -> None:
    known = {
        "lenet": (16.4, 24, 26.7), "alexnet": (21.8, 21.8, 31.8), "resnet": (20.1, 22.9, 19.3),
        "googlenet": (18.7, 17.5, 16.2), "inception": (16.9, 19.4, 18.9),
    }  # fmt: skip
    lines = [
        line
        for network, shares in known.items()
        for batch, share in zip((16, 32, 64), shares, strict=True)
        for line in (f"{network},{batch},1,p2p,100", f"{network},{batch},1,nccl,{100 + share}")
    ]
    found = rows("overhead", "--table", times(tmp_path, "epoch_s", *lines), "--as-matrix")
    told = {row["network"]: [row[batch] for batch in ("16", "32", "64")] for row in found}
    assert told == {network: pytest.approx(list(shares)) for network, shares in known.items()}
    every = list(itertools.chain(*told.values()))
    assert (min(every), max(every)) == pytest.approx((16.2, 31.8))


def test_d5_stages_of_a_step(tmp_path: Path) -> None:
    """DATA 0-10; FP 10-30; BP 30-60; copies in 50-70 and out 80-95; sum, update; ME; of 100 us."""
    with NsysBuilder(tmp_path / "step.sqlite", schema="3.0.0") as nsys:
        nsys.push_pop(1, 100 * US, "iteration 0")
        parts = (
            ("data", 0, 10), ("forward", 10, 30), ("backward", 30, 60), ("optimizer", 50, 70),
            ("optimizer", 70, 75), ("optimizer", 75, 80), ("optimizer", 80, 95),
            ("accuracy", 95, 98), ("other", 100, 100),
        )  # fmt: skip
        for place, (name, start, end) in enumerate(parts):
            at = 10 + 40 * place
            if name != "other":
                nsys.push_pop(at, at + 30, name)
            nsys.launch(at + 5, start * US, end * US, name=f"k{place}", stream=place)
    found = rows("study", tmp_path / "step.sqlite")[0]
    columns = ("fp_bp", "wu", "wu_exposed", "io_exposed", "me_exposed", "idle", "wu_residual")
    told = [found[f"{column}_ns"] for column in columns]
    assert told == [each * US for each in (50, 45, 35, 10, 3, 2, 50)]
    assert found["step_ns"] == 100 * US


def test_d6_speedups_of_stages(tmp_path: Path) -> None:
    """FP+BP of 100 and 40 s: 2.5."""
    lines = ["lenet,16,1,p2p,150,100,50", "lenet,16,4,p2p,65,40,25"]
    table = times(tmp_path, "epoch_s,fp_bp_s,wu_s", *lines)
    figure = tmp_path / "stages.html"
    found = rows("scaling", "--table", table, "--value", "stages", "--figure", figure)[-1]
    assert (found["speedup_fp_bp"], found["speedup_wu"]) == (2.5, 2)
    assert "lenet, FP+BP" in figure.read_text()


def test_d9_memory(memory: Path) -> None:
    told = rows("memory", "--table", memory, "--what", "table")
    found = {(row["network"], row["batch"]): row for row in told}
    extra = {key: round(row["extra_percent"], 2) for key, row in found.items()}
    assert [extra["lenet", b] for b in (16, 32, 64)] == [40.82, 39.22, 22.46]
    assert [extra["alexnet", b] for b in (16, 32, 64)] == [38.71, 34.09, 25.32]
    assert [extra["googlenet", b] for b in (16, 32, 64)] == [4.91, 2.54, 1.65]
    assert [extra["inception", b] for b in (16, 32, 64)] == [8.06, 10.56, 2.13]
    assert (extra["resnet", 16], extra["resnet", 64]) == (10.03, 3.61)
    # As printed, of numbers with more digits.
    assert extra["lenet", 16] == pytest.approx(41.1, abs=0.5)
    more = {key: round(row["increase_percent"], 2) for key, row in found.items()}
    assert (more["inception", 32], more["inception", 64]) == (72.24, 183.03)
    assert (more["resnet", 64], more["googlenet", 64]) == (161.88, 162.55)
    assert more["alexnet", 64] == 38.14
    row = found["lenet", 16]
    assert [row[name] / 1e9 for name in ("pre_bytes", "root_bytes", "others_bytes")] == [
        1.37, 2.76, 1.96
    ]  # fmt: skip


def test_d12_and_d13_bytes_that_must_be_exchanged(tmp_path: Path) -> None:
    """AlexNet on 8 GPUs: 3,360 MB a step; 6.88 TB an epoch in batches of 16, half in ones of 32."""
    lines = [f"alexnet,{batch},8,p2p,1,60M" for batch in (16, 32)]
    table = times(tmp_path, "epoch_s,parameters", *lines)
    found = rows("study", "--table", table, "--what", "exchange", "--images", str(IMAGES))
    assert [row["expected_bytes"] for row in found] == [3_360_000_000] * 2
    assert (found[0]["star_root_bytes"], found[0]["ring_gpu_bytes"]) == (1_680_000_000, 420_000_000)
    assert [row["iterations"] for row in found] == [2048, 1024]
    assert [round(row["epoch_bytes"] / 1e12, 2) for row in found] == [6.88, 3.44]
    given = times(tmp_path, "epoch_s", "alexnet,16,8,p2p,1")
    told = rows("study", "--table", given, "--what", "exchange", "--parameters", "60M")[0]
    assert told["expected_bytes"] == 3_360_000_000


def test_d14_the_largest_batch(memory: Path) -> None:
    """Inception by 0.1464 GB an image: 128 take 20.5 GB, which 16 GB do not hold."""
    words = ("memory", "--table", memory, "--what", "largest-batch", "--capacity")
    found = {row["network"]: row for row in rows(*words, "20.5GB", "--margin", "0")}
    assert found["inception"]["largest_batch"] in (127, 128)
    assert {row["network"]: row for row in rows(*words, "16GB")}["inception"]["largest_batch"] < 128


def test_m1_one_approach_over_another(tmp_path: Path) -> None:
    """180 images a second against 100: 1.8; 320 against 100: 3.2."""
    lines = ["resnet,64,16,grpc,1.8", "resnet,64,16,horovod,1.0", "mobilenet,64,16,grpc,3.2",
             "mobilenet,64,16,horovod,1.0"]  # fmt: skip
    found = rows("overhead", "--table", times(tmp_path, "step_s", *lines), "--baseline", "grpc")
    told = {row["network"]: row["throughput_ratio"] for row in found}
    assert told == {"resnet": pytest.approx(1.8), "mobilenet": pytest.approx(3.2)}


def test_m2_and_m3_images_per_second(tmp_path: Path) -> None:
    """100 on one GPU and 5,760 on 64 are 90 %; in larger batches 120 and 6,912."""
    lines = [
        "resnet,64,1,mpi,0.64", "resnet,64,64,mpi,0.7111111111111111",
        "resnet,128,1,mpi,1.0666666667", "resnet,128,64,mpi,1.1851851852",
    ]  # fmt: skip
    figure = tmp_path / "images.html"
    table = times(tmp_path, "step_s", *lines)
    found = rows("scaling", "--table", table, "--value", "images", "--figure", figure)
    told = {(row["batch"], row["gpus"]): row for row in found}
    assert told[64, 1]["images_per_s"] == pytest.approx(100)
    assert told[64, 64]["images_per_s"] == pytest.approx(5760)
    assert told[64, 64]["efficiency"] == pytest.approx(0.9)
    assert told[128, 1]["images_per_s"] == pytest.approx(120)
    assert told[128, 64]["efficiency"] == pytest.approx(0.9)
    assert "images per second" in figure.read_text()


def test_where_nccl_overtakes(tmp_path: Path) -> None:
    """8 % slower in batches of 16, 8 % quicker on a logarithmic scale in ones of 64: from 32 on."""
    lines = [
        "lenet,16,4,p2p,100,60K", "lenet,16,4,nccl,108,60K", "lenet,64,4,p2p,108,60K",
        "lenet,64,4,nccl,100,60K", "alexnet,16,4,p2p,100,60M", "alexnet,16,4,nccl,101,60M",
    ]  # fmt: skip
    table = times(tmp_path, "epoch_s,parameters", *lines)
    found = {r["network"]: r for r in rows("overhead", "--table", table, "--crossover", "batch")}
    assert found["lenet"]["crossing"] == pytest.approx(32)
    assert (found["lenet"]["crossing_from"], found["lenet"]["crossing_to"]) == (16, 64)
    assert found["lenet"]["found"] == "overtakes"
    assert (found["alexnet"]["points"], found["alexnet"]["found"]) == (1, "slower at one size")
    sizes = rows("overhead", "--table", table, "--crossover", "parameters")
    assert [row["found"] for row in sizes] == ["always slower", "not slower at one size"]


def test_stages_of_an_epoch(tmp_path: Path) -> None:
    """Steps of 10 ms, of which FP+BP is 6: 16,384 of them are 163.84 s."""
    table = times(tmp_path, "step_ms,fp_bp_ms,wu_ms", "lenet,16,1,p2p,10,6,3")
    figure = tmp_path / "epochs.html"
    found = rows("study", "--table", table, "--images", str(IMAGES), "--figure", figure)[0]
    assert found["epoch_ns"] == pytest.approx(163.84e9)
    assert "What an epoch is made of" in figure.read_text()
