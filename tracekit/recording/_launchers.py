"""Launchers of jobs, such as torchrun: where the program begins, and which variable has the rank.

nsys has to be between a launcher and its program to write one report per rank.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from tracekit.errors import UsageError

_SECONDS = 60
_PYTHON_MODULES = {
    "torch.distributed.run": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
}
_OF_PYTHON = ("torchrun", "accelerate", "deepspeed")
"""Launchers that run scripts with a Python of their choice by default."""
_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich",
        "mpiexec.mpich", "orterun", "prterun")  # fmt: skip
LAUNCHERS = (*_OF_PYTHON, "horovodrun", "srun", *_MPI)
"""Known launchers: programs that run another one once per rank."""
_OPEN_MPI = ("open mpi", "open-mpi", "openrte", "prrte", "prte")
_ALONE = {
    "torchrun": {"--standalone", "--no-python", "--no_python", "-m", "--module",
                 "--virtual-local-rank", "--virtual_local_rank"},
    "mpi": {"--allow-run-as-root", "--oversubscribe", "-oversubscribe", "--nooversubscribe",
            "--bynode", "--byslot", "--pernode", "-pernode", "--nolocal", "-nolocal",
            "--tag-output", "-tag-output", "--timestamp-output", "-timestamp-output", "-l",
            "-prepend-rank", "-q", "--quiet", "-v", "-verbose", "--verbose", "--display-map",
            "-display-map", "--display-allocation", "--report-bindings", "-report-bindings",
            "-genvall", "-genvnone", "-print-all-exitcodes", "-disable-hostname-propagation",
            "--use-hwthread-cpus"},
    "accelerate": {"--cpu", "--debug", "--downcast_bf16", "--dynamo_use_dynamic",
                   "--dynamo_use_fullgraph", "--dynamo_use_regional_compilation",
                   "--enable_cpu_affinity", "--fp8_use_autocast_during_eval", "--module", "-m",
                   "--multi_gpu", "--no_python", "--quiet", "-q", "--same_network", "--use_cpu",
                   "--use_deepspeed", "--use_fsdp", "--use_megatron_lm",
                   "--use_parallelism_config"},
    "deepspeed": {"--no_python", "--module", "--no_local_rank", "--no_ssh", "--no_ssh_check",
                  "--save_pid", "--force_multi", "--bind_cores_to_rank", "--elastic_training"},
    "horovodrun": {"--gloo", "--mpi", "--jsrun", "--verbose", "--disable-cache", "--autotune",
                   "--no-autotune", "--timeline-mark-cycles", "--no-timeline-mark-cycles",
                   "--hierarchical-allreduce", "--no-hierarchical-allreduce",
                   "--hierarchical-allgather", "--no-hierarchical-allgather", "--tcp",
                   "--prefix-output-with-timestamp", "--log-with-timestamp",
                   "--log-without-timestamp", "--stall-check", "--no-stall-check",
                   "--mpi-threads-disable", "--no-mpi-threads-disable"},
    "srun": {"-l", "--label", "-u", "--unbuffered", "--exclusive", "--overlap", "-O",
             "--overcommit", "-K", "--kill-on-bad-exit", "-k", "--no-kill", "--pty", "-E",
             "--preserve-env", "--contiguous", "--exact", "-Q", "--quiet", "-v", "--verbose",
             "-s", "--oversubscribe", "-H", "--hold", "-X", "--disable-status"},
}  # fmt: skip
"""Options without a value; all others are taken to have one, joined by an equals sign or not."""
_WHOLE = {
    "torchrun": {"--run-path"},
    "accelerate": {"--tpu"},
    "deepspeed": {"--autotuning", "--launcher"},
}
"""Options with which nsys cannot be inserted, since another launcher runs the program."""
_ATTACHED = re.compile(r"-[A-Za-z][^-].*")
"""An option of one letter with its value, as srun takes them: -n4."""
_HOROVOD = "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"
_ACCELERATE = "RANK,OMPI_COMM_WORLD_RANK,PMI_RANK"
_ENV_WITH_VALUE = {"-u", "--unset", "-C", "--chdir"}
_OF_DEBIAN = ("lib/*-linux-gnu", "lib/*-linux-gnu/openmpi/lib")
_TWO_VALUES = {"--mca", "-mca", "--gmca", "-gmca", "--prtemca", "--pmixmca", "-genv", "-env"}


@dataclass(frozen=True)
class Launch:
    """A command split into launcher and program."""

    launcher: tuple[str, ...]
    """The launcher with its options; empty if there is none."""
    program: tuple[str, ...]
    """The program with its arguments."""
    rank_variable: str | None = None
    """Environment variables that may contain the rank, joined by commas; the first one that is set
    counts. If several are given and none is set, the program is a single process. None without a
    launcher."""
    mpi: str | None = None
    """MPI of the launcher, ``openmpi`` or ``mpich``; None if it is of no MPI."""
    before: tuple[str, ...] = ()
    """Words before the launcher: ``env`` with its variables."""
    local_rank_at: int | None = None
    """Index of the program's word before which the launcher inserts the local rank, as
    ``--local_rank=1``; None if it does not."""


def split(command: Sequence[str]) -> Launch:
    """Split a command into its launcher, if it has a known one, and the program.

    Raises
    ------
    UsageError
        If the command is empty, or nothing is left for a launcher to run.
    """
    if not command:
        raise UsageError("there is no program to record", "tracekit record -- python train.py")
    if not (before := _variables_before(command)):
        return _split(command)
    behind = split(command[before:])
    if not behind.launcher:
        return Launch((), tuple(command))
    return replace(behind, before=(*command[:before], *behind.before))


def _split(command: Sequence[str]) -> Launch:
    """Split a command that starts with a launcher or the program (without ``env`` before it)."""
    kind, begin = _launcher(command)
    if kind is None:
        return Launch((), tuple(command))
    end = _end_of_options(command, begin, kind)
    # A torchrun that runs the script itself, or an mpirun of several programs, has no one place
    # for nsys to stand: it is recorded as a whole.
    spelt = {_spelt(each) for each in command[begin:end]}
    if spelt & _WHOLE.get(kind, set()) or (kind in _MPI and ":" in command):
        return Launch((), tuple(command))
    if end >= len(command):
        raise UsageError(
            f"{command[0]} has no program to run", f"tracekit record -- {command[0]} ... program"
        )
    if kind in _OF_PYTHON:
        return _of_python(kind, command, begin, end)
    if kind == "horovodrun":
        return Launch(tuple(command[:end]), tuple(command[end:]), _HOROVOD)
    if kind == "srun":
        return Launch(tuple(command[:end]), tuple(command[end:]), "SLURM_PROCID")
    mpi = implementation(command[0])
    variable = "OMPI_COMM_WORLD_RANK" if mpi == "openmpi" else "PMI_RANK"
    return Launch(tuple(command[:end]), tuple(command[end:]), variable, mpi)


def _variables_before(command: Sequence[str]) -> int:
    """Return the number of words of a leading ``env`` with its variables; 0 without it."""
    if PurePath(command[0]).name != "env":
        return 0
    at = 1
    while at < len(command):
        if command[at] in _ENV_WITH_VALUE:
            at += 2
        elif command[at].startswith("-") or "=" in command[at]:
            at += 1
        else:
            return at
    return 0


def _launcher(command: Sequence[str]) -> tuple[str | None, int]:
    """Return the launcher that a command starts with (or None), and its first option's index."""
    name = PurePath(command[0]).name
    if name == "accelerate":  # which does other things as well
        return (name, 2) if command[1:2] == ["launch"] else (None, 0)
    if name in LAUNCHERS:
        return name, 1
    is_module = name.startswith("python") and len(command) > 2 and command[1] == "-m"  # noqa: PLR2004
    return (_PYTHON_MODULES.get(command[2]), 3) if is_module else (None, 0)


def _end_of_options(command: Sequence[str], begin: int, kind: str) -> int:
    """Return the index of the first word that is neither an option nor an option's value.

    `kind` is the launcher, which decides which options have a value; the search starts at `begin`.
    """
    at, alone = begin, _ALONE["mpi" if kind in _MPI else kind]
    known = {_spelt(each) for each in alone} if kind in _OF_PYTHON else ()
    while at < len(command) and command[at].startswith("-"):
        option = command[at]
        if option == "--":
            return at + 1
        attached = kind == "srun" and _ATTACHED.fullmatch(option)
        if option in alone or _spelt(option) in known or "=" in option or attached:
            at += 1
        elif option in _TWO_VALUES:
            at += 3
        else:
            at += 2
    return at


def _spelt(option: str) -> str:
    """Return an option's name with hyphens in place of underscores, without its value."""
    return option.partition("=")[0].replace("_", "-")


def _of_python(kind: str, command: Sequence[str], begin: int, end: int) -> Launch:
    """Return the parts of a command whose launcher runs Python scripts (such as torchrun).

    Its options are changed so that it runs nsys instead.
    """
    options = list(command[begin:end])
    runs_program = any(_spelt(each) == "--no-python" for each in options)
    is_module = {"-m", "--module"} & set(options)
    kept = [each for each in options if each not in {"-m", "--module"}]
    program = tuple(command[end:])
    tells = kind == "deepspeed" and "--no_local_rank" not in options
    at = 1
    if not runs_program:
        python = [_python_of(command), "-u", *(["-m"] if is_module else [])]
        at += len(python)
        program = (*python, *program)
        kept.append("--no-python" if kind == "torchrun" else "--no_python")
    if tells:  # to its program, which is nsys: so we do
        kept.append("--no_local_rank")
    # accelerate runs a single process without a rank, and those of MPI with MPI's.
    variable = _ACCELERATE if kind == "accelerate" else "RANK"
    launcher = (*command[:begin], *kept)
    return Launch(launcher, program, variable, local_rank_at=at if tells else None)


def _python_of(command: Sequence[str]) -> str:
    """Return the Python that belongs to a torchrun: in the same folder, else the first on the path.

    A symbolic link to the Python of a virtual environment must not be resolved, since that would
    leave the environment.
    """
    if PurePath(command[0]).name.startswith("python"):
        return command[0]
    found = shutil.which(command[0])
    beside = None if found is None else shutil.which("python", path=str(PurePath(found).parent))
    return beside or "python"


def implementation(launcher: str) -> str:
    """Return the MPI of a launcher: ``openmpi``, or ``mpich`` (also for MPIs derived from it)."""
    output = PurePath(launcher).name
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user is about to run
            [launcher, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        output += (done.stdout + done.stderr).decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired):
        pass  # what runs it will say so
    is_open = any(each in output.lower() for each in (*_OPEN_MPI, "openmpi", "orterun", "prterun"))
    return "openmpi" if is_open else "mpich"


def is_python(program: Sequence[str]) -> bool:
    """Test whether a command runs a Python program."""
    return bool(program) and PurePath(program[0]).name.startswith("python")


def mpi_library(launcher: str, mpi: str | None) -> Path | None:
    """Return the MPI library installed with a launcher; None if none is beside it.

    ``libmpi.so`` itself is a link or a linker script; the file with a version number is the
    library. If `mpi` is ``openmpi``, the folders that Debian has per architecture are searched,
    too.
    """
    found = shutil.which(launcher)
    if found is None:
        return None
    prefix = Path(found).resolve().parent.parent
    folders = ("lib", "lib64", *(_OF_DEBIAN if mpi == "openmpi" else ()))
    libraries = (path for folder in folders for path in prefix.glob(f"{folder}/libmpi.so.*"))
    numbered = [path for path in libraries if path.name.rpartition(".")[2].isdigit()]
    return min(numbered, key=lambda path: (len(path.name), path), default=None)


# -- GPUs of this machine


_VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpu_count() -> int:
    """Return the number of GPUs visible to a program; 0 without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],  # noqa: S607 - the driver's tool is wherever the path has it
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    present = sum(line.startswith(b"GPU ") for line in done.stdout.splitlines())
    visible = os.environ.get(_VISIBLE)
    if visible is None:
        return present
    entries = (each.strip() for each in visible.split(","))
    # As CUDA does: what comes behind an entry that names no GPU is not seen.
    seen = itertools.takewhile(lambda each: _names_gpu(each, present), entries)
    return min(present, len(set(seen)))


def _names_gpu(entry: str, present: int) -> bool:
    if entry.isdecimal():
        return int(entry) < present
    return entry.startswith(("GPU-", "MIG-"))
