"""Commands taken apart into launcher and program."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit.recording import split


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Launchers of two MPIs, and a torchrun with a Python beside it."""
    for name, said in {
        "mpirun": "mpirun (Open MPI) 5.0.3",
        "mpiexec": "HYDRA build details:\nVersion: 5.0.2",
        "srun": "slurm 24.05",
        "torchrun": "",
        "python": "",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


@pytest.mark.parametrize(
    "command", ["python train.py --lr 3", "./train", "python -m workloads.train", "accelerate env"]
)
def test_a_program_alone(command: str) -> None:
    launch = split(shlex.split(command))
    assert (launch.launcher, launch.rank_variable, launch.mpi) == ((), None, None)
    assert shlex.join(launch.program) == command


@pytest.mark.parametrize(
    ("command", "launcher", "program"),
    [
        ("mpirun -np 4 python a.py -n 3", "mpirun -np 4", "python a.py -n 3"),
        ("mpirun --allow-run-as-root -n 2 -x PATH --mca btl self,tcp ./a",
         "mpirun --allow-run-as-root -n 2 -x PATH --mca btl self,tcp", "./a"),
        ("mpirun --map-by node --hostfile=hosts --oversubscribe a b",
         "mpirun --map-by node --hostfile=hosts --oversubscribe", "a b"),
        ("mpirun a", "mpirun", "a"),
        ("mpirun -np 8 -H a:4,b:4 -x LD_LIBRARY_PATH --bind-to none --pernode a",
         "mpirun -np 8 -H a:4,b:4 -x LD_LIBRARY_PATH --bind-to none --pernode", "a"),
        ("mpirun -n 2 -- a", "mpirun -n 2 --", "a"),
        ("mpirun --launcher ssh -n 2 a", "mpirun --launcher ssh -n 2", "a"),
    ],
)  # fmt: skip
def test_open_mpi(programs: Path, command: str, launcher: str, program: str) -> None:
    launch = split(shlex.split(command))
    assert shlex.join(launch.launcher) == launcher
    assert shlex.join(launch.program) == program
    assert (launch.rank_variable, launch.mpi) == ("OMPI_COMM_WORLD_RANK", "openmpi")


def test_mpich_by_its_path(programs: Path) -> None:
    launch = split([str(programs / "mpiexec"), "-genv", "A", "1", "-l", "-n", "2", "./a"])
    assert launch.launcher[1:] == ("-genv", "A", "1", "-l", "-n", "2")
    assert (launch.program, launch.rank_variable, launch.mpi) == (("./a",), "PMI_RANK", "mpich")


def test_an_mpi_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    assert split(["mpiexec", "-n", "2", "a"]).mpi == "mpich"
    assert split(["mpirun.openmpi", "-n", "2", "a"]).mpi == "openmpi"


@pytest.mark.parametrize(
    "options",
    [
        "-N 2 --ntasks-per-node=8 -l", "-n4", "-N2 -n4 -c8", "--mpi=pmix -n 4 --kill-on-bad-exit",
        "--pty -vv", "",
    ],
)  # fmt: skip
def test_slurm(options: str) -> None:
    launch = split(shlex.split(f"srun {options} python a.py"))
    assert shlex.join(launch.launcher) == f"srun {options}".strip()
    assert (launch.program, launch.rank_variable) == (("python", "a.py"), "SLURM_PROCID")


@pytest.mark.parametrize(
    "command",
    [
        "python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py",
        "torchrun --run-path train.py",
        "mpirun -n 1 python a.py : -n 1 python b.py",
        "accelerate launch --tpu a.py",
        "deepspeed --launcher openmpi a.py",
        "deepspeed --autotuning run a.py",
    ],
)
def test_what_has_no_place_for_an_nsys_per_rank(command: str) -> None:
    launch = split(shlex.split(command))
    assert launch.launcher == ()
    assert shlex.join(launch.program) == command


@pytest.mark.parametrize(
    ("command", "launcher", "program"),
    [
        ("torchrun --nproc-per-node 2 a.py --lr 3",
         "torchrun --nproc-per-node 2 --no-python", "PYTHON -u a.py --lr 3"),
        ("torchrun --standalone --nproc_per_node=2 -m pkg.train x",
         "torchrun --standalone --nproc_per_node=2 --no-python", "PYTHON -u -m pkg.train x"),
        ("torchrun --no-python --nnodes 2 ./a", "torchrun --no-python --nnodes 2", "./a"),
        ("/bin/python3 -m torch.distributed.run --nnodes 1 a.py",
         "/bin/python3 -m torch.distributed.run --nnodes 1 --no-python", "/bin/python3 -u a.py"),
    ],
)  # fmt: skip
def test_torchrun(programs: Path, command: str, launcher: str, program: str) -> None:
    launch = split(shlex.split(command))
    assert shlex.join(launch.launcher) == launcher
    assert shlex.join(launch.program) == program.replace("PYTHON", str(programs / "python"))
    assert (launch.rank_variable, launch.mpi) == ("RANK", None)


@pytest.mark.parametrize(
    ("command", "launcher", "program", "rank"),
    [
        ("accelerate launch --num_processes 2 --multi_gpu a.py --lr 3",
         "accelerate launch --num_processes 2 --multi_gpu --no_python", "PYTHON -u a.py --lr 3",
         "RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"),
        ("accelerate launch --use-fsdp --mixed_precision=bf16 -m pkg.train x",
         "accelerate launch --use-fsdp --mixed_precision=bf16 --no_python",
         "PYTHON -u -m pkg.train x", "RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"),
        ("deepspeed --num_gpus 4 a.py --deepspeed_config x.json",
         "deepspeed --num_gpus 4 --no_python --no_local_rank",
         "PYTHON -u a.py --deepspeed_config x.json", "RANK"),
        ("deepspeed --no_python --no_local_rank ./a b", "deepspeed --no_python --no_local_rank",
         "./a b", "RANK"),
        ("horovodrun -np 4 --gloo -H a:2,b:2 python a.py -np", "horovodrun -np 4 --gloo -H a:2,b:2",
         "python a.py -np", "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"),
    ],
)  # fmt: skip
def test_launchers_of_frameworks(
    programs: Path, command: str, launcher: str, program: str, rank: str
) -> None:
    for name in ("accelerate", "deepspeed"):
        shutil.copy(programs / "torchrun", programs / name)
    launch = split(shlex.split(command))
    assert shlex.join(launch.launcher) == launcher
    assert shlex.join(launch.program) == program.replace("PYTHON", str(programs / "python"))
    assert (launch.rank_variable, launch.mpi) == (rank, None)


def test_a_torchrun_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    assert split(["torchrun", "a.py"]).program == ("python", "-u", "a.py")


@pytest.mark.parametrize("command", [[], ["mpirun"], ["torchrun", "--nproc-per-node", "2"]])
def test_nothing_to_run(command: list[str]) -> None:
    with pytest.raises(UsageError, match=r"no program to .*: tracekit record -- "):
        split(command)


def test_python_itself_is_no_launcher() -> None:
    assert split([sys.executable]).program == (sys.executable,)
    assert split([sys.executable, "-m"]).launcher == ()


@pytest.mark.parametrize("before", ["env X=1", "/usr/bin/env -u A -i X=1 Y=", "env env X=1"])
def test_variables_stand_before_a_launcher(programs: Path, before: str) -> None:
    launch = split(shlex.split(f"{before} mpirun -n 2 ./a X=2"))
    assert shlex.join(launch.before) == before
    assert shlex.join(launch.launcher) == "mpirun -n 2"
    assert (shlex.join(launch.program), launch.mpi) == ("./a X=2", "openmpi")


@pytest.mark.parametrize("command", ["env X=1 python a.py", "env", "env X=1", "env -u A"])
def test_variables_before_no_launcher(command: str) -> None:
    launch = split(shlex.split(command))
    assert (launch.before, launch.launcher) == ((), ())
    assert shlex.join(launch.program) == command
