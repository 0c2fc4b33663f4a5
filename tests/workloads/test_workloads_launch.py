"""How the processes of a job come to be, and how they end."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from rank_helpers import with_torch  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from workloads import _command, _launch, train  # noqa: E402
from workloads._errors import DataError, OptionError, RankError, WorkloadError  # noqa: E402
from workloads._launch import as_arguments, run  # noqa: E402
from workloads._options import Compiler, DeviceKind, Options, Root  # noqa: E402
from workloads._world import Place, find_place  # noqa: E402
from workloads.data import app as data_app  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "workloads.train"]
LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK")


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def mpiexec_beside() -> str | None:
    """Return the mpiexec of this environment, else that of the PATH."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    return beside or shutil.which("mpiexec")


def _finished(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command, and end all of its processes if it takes too long."""
    job = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = job.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(command, job.returncode, output, errors)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"RANK": "1"}, None),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Place(5, 8, 1)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            },
            Place(1, 2, 0),
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3"}, Place(3, 4, 3)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4"}, Place(3, 4, 3)),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "PMI_RANK": "3", "PMI_SIZE": "4"},
            Place(0, 1, 0),
        ),
    ],
)
def test_what_launchers_say(environment: Mapping[str, str], place: Place | None) -> None:
    assert find_place(environment) == place


@pytest.mark.parametrize("rank", ["two", "2", "-1"])
def test_what_launchers_should_not_say(rank: str) -> None:
    with pytest.raises(OptionError, match=f"RANK={rank} and WORLD_SIZE=2"):
        find_place({"RANK": rank, "WORLD_SIZE": "2"})


def test_a_job_of_another_size_than_asked_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="has 4 processes, and 2 were started"):
        run(Options(method="gloo", gpus=4))
    with pytest.raises(OptionError, match="has 1 processes, and 2 were started"):
        run(Options(method="p2p", gpus=2))


def test_arguments_ask_for_the_same_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Options(
        network="alexnet", method="p2p", gpus=3, batch=8, epochs=2, images=2048,
        data=tmp_path, root=Root.SPREAD, overlap=True, auxiliary=False, nvtx=False,
        capture_range=True, bucket_mb=1.5, device=DeviceKind.CPU, compile=Compiler.AOT_EAGER,
    )  # fmt: skip
    seen: list[Options] = []
    monkeypatch.setattr(_launch, "run", seen.append)
    arguments = as_arguments(asked)
    assert {"--no-nvtx", "--layers", "--batch-scope=gpu", "--images=2048"} <= set(arguments)
    assert CliRunner().invoke(train.app, arguments).exit_code == 0
    assert CliRunner().invoke(train.app, as_arguments(Options())).exit_code == 0
    assert seen == [asked, Options()]


def test_each_option_is_on_the_command_line() -> None:
    told = CliRunner().invoke(train.app, ["--help"], terminal_width=200).output
    for each in fields(Options):
        assert f"--{each.name.replace('_', '-')}" in told, each.name
    assert "python -m workloads.train --network lenet" in told


@pytest.mark.training
@pytest.mark.parametrize(
    ("method", "error", "says"),
    [
        ("Raising", RankError, r"rank 1 failed \(ZeroDivisionError: nothing is left\)"),
        ("Killed", RankError, "rank 1 was ended by SIGKILL"),
        ("Complaining", DataError, "the data are spoilt: use others"),
    ],
)
def test_a_process_that_fails_takes_the_others_down(
    method: str,
    error: type[WorkloadError],
    says: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Processes that have PyTorch already: how new ones come to be, other tests look at.
    context = with_torch()
    monkeypatch.setattr(mp, "get_context", lambda _: context)
    begun = time.monotonic()
    with pytest.raises(error, match=says):
        run(Options(method=f"unruly_methods:{method}", gpus=2, batch=2, nvtx=False))
    assert time.monotonic() - begun < 120
    assert mp.active_children() == []
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (method == "Raising")


@pytest.mark.training
def test_a_job_that_is_ended_leaves_no_process_behind(tmp_path: Path) -> None:
    job = subprocess.Popen(
        [*PROGRAM, "--method", "gloo", "--gpus", "2", "--steps", "1000000"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    psutil = pytest.importorskip("psutil")
    children = []
    while len(children) < 2 and job.poll() is None:
        time.sleep(0.1)
        children = [
            c for c in psutil.Process(job.pid).children() if "spawn_main" in str(c.cmdline())
        ]
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def _marked(psutil: ModuleType, mark: str) -> list[int]:
    """Return the processes that run and have a mark in their environment, whoever started them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_over = process.status() == psutil.STATUS_ZOMBIE
            if not is_over and process.environ().get("TRACEKIT_TEST") == mark:
                found.append(process.pid)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("moment_s", [0.3, 2, 5, 9, 15])
@pytest.mark.parametrize(
    "method",
    [
        "gloo", "gloo --exchange=reduce_broadcast", "gloo --exchange=sharded", "ps", "pipeline",
        "mpi",
    ],
)  # fmt: skip
def test_nothing_is_left_when_the_first_process_is_killed(method: str, moment_s: float) -> None:
    psutil = pytest.importorskip("psutil")
    if method == "mpi" and not mpiexec_beside():
        pytest.skip("no mpiexec")
    mark = uuid.uuid4().hex
    job = subprocess.Popen(
        [*PROGRAM, "--gpus=2", "--batch=4", "--steps=1000000", "--method", *method.split()],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env={**os.environ, "TRACEKIT_TEST": mark},
    )  # fmt: skip
    try:
        time.sleep(moment_s)
        assert job.poll() is None
        job.kill()
        job.wait()
        end = time.monotonic() + 10
        while (left := _marked(psutil, mark)) and time.monotonic() < end:
            time.sleep(0.1)
        assert left == []
    finally:
        for pid in _marked(psutil, mark):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.training
def test_the_command_trains_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context, file = with_torch(), tmp_path / "summary.json"
    monkeypatch.setattr(mp, "get_context", lambda _: context)
    words = ["--method=gloo", "--gpus=2", "--steps=20", "--no-nvtx", f"--summary={file}"]
    done = CliRunner().invoke(train.app, words)
    assert done.exit_code == 0, done.stderr
    summary = json.loads(file.read_text())
    assert len(summary["losses"]) == 20
    assert summary["losses"][-1] < 0.5 * summary["losses"][0]
    assert summary["labels"]["method"] == "gloo"
    assert summary["gather_bytes"] == 4 * 61706
    told = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert told["exchanged"] == "bytes per step, message: 246824 of gradients"
    assert told["gpus"] == "2"


@pytest.mark.training
@pytest.mark.nightly
@pytest.mark.parametrize("launcher", ["torchrun", "mpiexec"])
def test_a_job_that_a_launcher_has_started(launcher: str, tmp_path: Path) -> None:
    before = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    program = PROGRAM[1:]
    if launcher == "mpiexec":
        pytest.importorskip("mpi4py")
        mpiexec = mpiexec_beside()
        if mpiexec is None:
            pytest.skip("no mpiexec")
        before, program = (mpiexec, "-n", "2"), PROGRAM
    file = tmp_path / "summary.json"
    done = _finished(
        *before, *program, "--method=gloo", "--steps=3", "--no-nvtx", f"--summary={file}"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exchanged") == 1
    assert json.loads(file.read_text())["labels"]["gpus"] == "2"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "none", "--gpus", "2"], "workloads: the method none trains on one device"),
        (["--images", "lots"], "workloads: 'lots' is not a number of images"),
        (["--data", "no/such/place"], "workloads: no/such/place is no .npz or .pt file"),
        (
            ["--summary", "no/such/place.json"],
            "workloads: the summary cannot be written to no/such",
        ),
        (["--summary", "."], "workloads: the summary cannot be written to ."),
        (["--image-size", "4"], "workloads: lenet cannot be trained on 32 images of 4 x 4 (Cal"),
        (["--epochs", "1"], "workloads: synthetic data have epochs of no certain length"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(train.app, [*arguments, "--device", "cpu", "--no-nvtx"])
    assert done.exit_code == 2
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_without_pytorch_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_command, "find_spec", lambda name: None)
    done = CliRunner().invoke(train.app, [])
    assert done.exit_code == 2
    assert done.stderr == (
        "workloads: PyTorch is not installed: pip install 'tracekit[workloads]'\n"
    )


def test_the_commands_import_no_pytorch_to_show_their_help() -> None:
    program = "import sys, workloads.train, workloads.data; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.slow
def test_data_that_are_written_can_be_trained_on(tmp_path: Path) -> None:
    folder = tmp_path / "lenet"
    written = CliRunner().invoke(data_app, [str(folder), "--images", "70", "--shards", "3"])
    assert written.exit_code == 0, written.stderr
    assert written.stdout == f"70 samples for lenet in 3 files: {folder}\n"
    assert len(list(folder.iterdir())) == 3
    file = tmp_path / "summary.json"
    arguments = [f"--data={folder}", "--epochs=8", "--no-nvtx", "--device=cpu", f"--summary={file}"]
    done = CliRunner().invoke(train.app, arguments)
    assert done.exit_code == 0, done.stderr
    summary = json.loads(file.read_text())
    assert summary["epoch_steps"] == 3
    assert len(summary["losses"]) == 24
    assert done.stderr.splitlines()[-1] == (
        f"workloads: step 24 of 24: loss {summary['losses'][-1]:.6f}"
    )
    assert summary["losses"][-1] < 0.7 * summary["losses"][0]
    assert summary["labels"]["images"] == "70"
