"""Training by MPI."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mpi4py")

from nvtx_recorder import Recorder  # noqa: E402
from trace_builder import TraceBuilder  # noqa: E402
from without_compiler import WITHOUT_COMPILER  # noqa: E402

from tracekit.analysis.communication import latency  # noqa: E402
from workloads import _mpi  # noqa: E402
from workloads._annotate import NvtxAnnotations  # noqa: E402
from workloads._errors import MissingError  # noqa: E402
from workloads._launch import run  # noqa: E402
from workloads._loop import train  # noqa: E402
from workloads._options import BatchScope, DeviceKind, Options, Staging  # noqa: E402
from workloads.latency import sizes, sweep  # noqa: E402
from workloads.methods._buckets import fill_buckets  # noqa: E402
from workloads.methods._method import World  # noqa: E402
from workloads.methods.mpi import Mpi, is_staged  # noqa: E402
from workloads.networks import NETWORKS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
TRAIN = [sys.executable, "-m", "workloads.train", "--no-nvtx", "--method=mpi"]


@pytest.fixture(scope="session")
def mpiexec() -> list[str]:
    """Give the command that starts two processes; the test is skipped where there is none."""
    try:
        return [*Mpi.starter(Options(gpus=2))]
    except MissingError as error:
        pytest.skip(str(error))


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def _summary(folder: Path, *command: str) -> dict[str, Any]:
    """Run a training, and return what it has written."""
    path = folder / "summary.json"
    done = _run(*command, f"--summary={path}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.training
@pytest.mark.usefixtures("mpiexec")
@pytest.mark.parametrize("is_overlapped", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_it_starts_its_processes_itself_and_trains_as_one_device(
    is_overlapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Options(
        batch=12, batch_scope=BatchScope.GLOBAL, steps=4, learning_rate=0.05,
        evaluate_every=4, nvtx=False,
    )  # fmt: skip
    path = tmp_path / "summary.json"
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_COMPILER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(ROOT)
    run(replace(asked, method="mpi", gpus=2, overlap=is_overlapped, bucket_mb=0.05, summary=path))
    found = json.loads(path.read_text())
    alone = train(asked, World())
    assert found["losses"] == pytest.approx(alone.losses, abs=5e-7)
    assert max(alone.losses) > min(alone.losses) + 0.05
    assert found["evaluations"][0]["loss"] == pytest.approx(alone.evaluations[0].loss, abs=5e-7)
    assert found["gather_bytes"] == 4 * 61_706
    assert (found["scatter_bytes"], found["evidence"]) == (0, "message")
    assert found["labels"]["gpus"] == "2"


FAILING = """
import os
from workloads._launch import run
from workloads._loop import Loop
from workloads._options import Options

step = Loop._step

def failing(self, number):
    if number == 1 and os.environ["WHO_FAILS"] == str(self._method.own[0]):
        raise RuntimeError("lost on purpose")
    return step(self, number)

Loop._step = failing
run(Options(method="mpi", gpus=2, steps=3, batch=2, nvtx=False))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_that_fails_ends_all(mpiexec: list[str], rank: str) -> None:
    done = _run(*mpiexec, sys.executable, "-c", FAILING, WHO_FAILS=rank)
    assert done.returncode != 0
    assert "lost on purpose" in done.stderr


@pytest.mark.training
def test_another_mpi_than_that_of_the_launcher(mpiexec: list[str]) -> None:
    """Started by Open MPI's launcher, a process that has loaded MPICH is alone."""
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    started = dict(zip(names, ("0", "2", "0"), strict=True))
    done = _run(*TRAIN, "--gpus=2", "--steps=1", **started)
    assert done.returncode == 3
    assert "MPI counts 1 processes and the launcher 2: mpi4py has loaded" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingError, match=r"run mpirun -n 4 python -m workloads\.train"):
        Mpi.starter(Options(gpus=4))


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mpi, "find_spec", {"grpc": object()}.get)
    with pytest.raises(MissingError, match="mpi4py is not installed"):
        Mpi.check(Options(), 1)


@pytest.mark.parametrize(
    ("wanted", "device", "knows_cuda", "staged"),
    [
        (Staging.AUTO, "cuda", True, False),
        (Staging.AUTO, "cuda", False, True),
        (Staging.AUTO, "cuda", None, True),
        (Staging.HOST, "cuda", True, True),
        (Staging.DIRECT, "cuda", True, False),
        (Staging.DIRECT, "cuda", None, False),  # the user knows better
        (Staging.HOST, "cpu", False, False),  # gradients are in host memory already
        (Staging.DIRECT, "cpu", False, False),
    ],
)
def test_what_is_staged(
    wanted: Staging, device: str, knows_cuda: bool | None, staged: bool
) -> None:
    assert is_staged(wanted, device, knows_cuda=knows_cuda) is staged


def test_device_memory_that_mpi_does_not_take() -> None:
    with pytest.raises(MissingError, match="does not take memory of CUDA devices"):
        is_staged(Staging.DIRECT, "cuda", knows_cuda=False)


def test_fill_buckets() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (1, 2, 3, 4, 5)]
    by_bytes = {enough: fill_buckets(parameters, enough) for enough in (0, 20, 24, math.inf)}
    sizes = {
        enough: [[one.numel() for one in bucket.parameters] for bucket in buckets]
        for enough, buckets in by_bytes.items()
    }
    assert sizes[0] == [[5], [4], [3], [2], [1]]
    assert sizes[20] == [[5], [4, 3], [2, 1]]
    assert sizes[24] == [[5, 4], [3, 2, 1]]
    assert sizes[math.inf] == [[5, 4, 3, 2, 1]]


def test_a_bucket_packs_and_gives_back() -> None:
    parameters = [torch.nn.Parameter(torch.full((size, 2), float(size))) for size in (1, 2)]
    for one in parameters:
        one.grad = -one.detach()
    [bucket] = fill_buckets(parameters, math.inf)
    assert bucket.take_gradients().tolist() == [-2, -2, -2, -2, -1, -1]
    assert [one.grad for one in parameters] == [None, None]
    bucket.vector += 1
    bucket.give_gradients()
    assert [one.grad.tolist() for one in parameters] == [[[0, 0]], [[-1, -1], [-1, -1]]]
    assert bucket.take_weights().tolist() == [2, 2, 2, 2, 1, 1]
    bucket.vector *= 3
    bucket.give_weights()
    assert [one.tolist() for one in parameters] == [[[3, 3]], [[6, 6], [6, 6]]]
    parameters[0].grad = None
    with pytest.raises(RuntimeError, match="has no gradient"):
        bucket.take_gradients()


def test_a_bucket_sets_out_once_the_backward_pass_has_it() -> None:
    """In the order in which that has the last layers first, and in each pass anew."""
    network = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
    begun: list[int] = []
    for number, bucket in enumerate(fill_buckets(list(network.parameters()), 24)):
        bucket.when_full(partial(begun.append, number))
    loss = network(torch.ones(1, 2)).sum()
    for _ in range(2):
        loss.backward(retain_graph=True)
        assert begun == [0, 1, 2]
        begun.clear()


def test_a_deep_network_takes_few_calls() -> None:
    """Of ResNet-110 on 8 devices: calls a step one by one, and in buckets of 25 MiB."""
    with torch.device("meta"):
        parameters = list(NETWORKS["resnet-110-imagenet"].build().parameters())
    for enough, copies, calls in ((0, 4_774, 682), (25 << 20, None, 16), (math.inf, 14, None)):
        buckets = len(fill_buckets(parameters, enough))
        assert copies in {None, buckets * 7 * 2}  # from seven to a root, and back
        assert calls in {None, buckets * 2}  # reduced, and broadcast


@pytest.mark.training
def test_latency_by_size(mpiexec: list[str]) -> None:
    sweep = [sys.executable, "-m", "workloads.latency", "--no-nvtx", "--repeats=3"]
    done = _run(*mpiexec, *sweep, "--largest=64")
    assert done.returncode == 0, done.stderr
    _, *rows = [line.split() for line in done.stdout.splitlines()]
    operations = ("all_reduce", "broadcast", "ping_pong")
    expected = [(one, str(size)) for size in (4, 8, 16, 32, 64) for one in operations]
    assert [(row[0], row[1]) for row in rows] == expected
    for row in rows:
        least, median, mean, most = map(float, row[2:])
        assert 0 < least <= median <= most
        assert least <= mean <= most


class _Alone:
    """The first of two processes, whose messages arrive at once."""

    rank, size = 0, 2

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def Reduce(self, own: Any, total: Any, root: int) -> None:  # noqa: N802 - as in mpi4py
        total[:] = own


def test_calls_of_mpi_say_their_sizes_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their latency is known under an nsys that traces no MPI, or no sizes of it."""
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, "nvtx", recorder)
    found = list(sweep(_Alone(), 64, 2, 3, NvtxAnnotations(layers=False)))
    assert [each.operation for each in found] == ["all_reduce", "broadcast", "ping_pong"]
    first = ["all_reduce of 64 bytes", "MPI_Allreduce 64 bytes", "MPI_Allreduce 64 bytes"]
    assert [span.name for span in recorder.spans] == [
        *first, "broadcast of 64 bytes", *["MPI_Bcast 64 bytes"] * 2,
        "ping_pong of 64 bytes", *["MPI_Send 64 bytes", "MPI_Recv 64 bytes"] * 2,
    ]  # fmt: skip
    builder = TraceBuilder()
    for process in (0, 1):
        for span in recorder.spans:
            # One arrives first: ends tell nothing of calls that begin at one instant.
            builder.range(span.start - process, span.end, span.name, thread=10 * process)
    rows = latency(builder.attributed(), buckets="exact").rows
    told = rows.select("operation", "size_bytes", "count", "participants").rows()
    assert sorted(told) == [
        ("all_reduce", 64, 2, 2), ("broadcast", 64, 2, 2), ("recv", 64, 4, 1), ("send", 64, 4, 1),
    ]  # fmt: skip


@pytest.mark.training
def test_nobody_to_exchange_messages_with(mpiexec: list[str]) -> None:
    done = _run(mpiexec[0], "-n", "1", sys.executable, "-m", "workloads.latency", "--no-nvtx")
    assert done.returncode == 2
    assert "run mpirun -n 2 python -m workloads.latency" in done.stderr


def test_a_tracer_that_looks_for_mpi_too_early(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(preloaded: str, *, has_library: bool) -> str:
        library = SimpleNamespace(PMPI_Init=None) if has_library else SimpleNamespace()
        monkeypatch.setattr(_mpi.ctypes, "CDLL", lambda _: library)
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        _mpi._warn_of_crash()
        return capsys.readouterr().err

    tracer = "/nsys/libToolsInjectionProxy64.so:/nsys/libToolsInjectionMPICH64.so"
    assert "LD_PRELOAD=$LD_PRELOAD:/path/to/libmpi.so" in warned(tracer, has_library=False)
    assert warned(tracer, has_library=True) == ""
    assert warned("/nsys/libToolsInjectionProxy64.so", has_library=False) == ""


def test_sizes() -> None:
    assert list(sizes(4, 4 << 20)) == [4 << power for power in range(21)]
    assert list(sizes(6, 47)) == [6, 12, 24]


@pytest.mark.gpu
def test_gradients_staged_through_the_host(mpiexec: list[str], tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    asked = ["--device=cuda", "--gpus=1", "--steps=4", "--mpi-staging=host"]
    found = _summary(tmp_path, mpiexec[0], "-n", "1", *TRAIN, *asked)
    alone = train(Options(steps=4, device=DeviceKind.CUDA, nvtx=False), World())
    assert found["losses"] == pytest.approx(alone.losses, abs=1e-5)
