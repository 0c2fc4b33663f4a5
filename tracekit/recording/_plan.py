"""Plan of a recording: its command, environment, and the folder of its reports."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracekit.errors import UsageError
from tracekit.recording._launchers import Launch, is_python, mpi_library, split
from tracekit.recording._nsys import CUDA_RANGE, Nsys, profile_command
from tracekit.recording._wanted import Wanted

_ENDINGS = (".nsys-rep", ".qdrep")
_LOADING = 'LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$0" exec "$@"'
"""Shell line that runs a program with a library preloaded, in addition to those of nsys."""
_WATCHED = (
    'nvidia-smi topo -m > "$0/topology.txt"; '
    "nvidia-smi --query-gpu=timestamp,index,uuid,memory.used --format=csv -lms 200"
    ' > "$0/memory.csv" & exec "$@"'
)
"""Shell line that runs a command with the topology in a file, and samples of GPU memory in another.
The sampling process runs on after the command, and is ended like all leftover processes."""
TOPOLOGY, MEMORY = "topology.txt", "memory.csv"
_OUR_RANK = "TRACEKIT_RANK"
_NCCL_LOG = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,COLL",
}
"""Variables that make NCCL log its rings, trees and the choice for each call."""


@dataclass(frozen=True)
class Plan:
    """Command, environment and report folder of a recording."""

    launch: Launch
    """The program and its launcher."""
    profile: tuple[str, ...]
    """The nsys command, without the option for the output file."""
    folder: Path
    """Folder for the reports."""
    variables: Mapping[str, str]
    """Environment variables for the command: name -> value."""
    nccl_log: bool
    """Whether NCCL writes logs into the folder."""
    library: str | None = None
    """Library that is preloaded into the program, after those of nsys; None for none."""
    watched: bool = False
    """Whether `nvidia-smi` writes the machine's topology, and memory in use, into the folder."""
    recorder: str = "nsys"
    """Path and version of the nsys."""

    @property
    def command(self) -> tuple[str, ...]:
        """Command to run: launcher, nsys with its options and output file, then the program."""
        variable, wrapper = _rank_variable(self.launch.rank_variable)
        name = "report" if variable is None else f"rank%q{{{variable}}}"
        # nsys replaces what follows a percent sign, but in the name that is meant for it.
        folder = str(self.folder.absolute()).replace("%", "%%")
        output = f"--output={folder}/{name}"
        launch = self.launch
        watch = ("sh", "-c", _WATCHED, str(self.folder.absolute())) if self.watched else ()
        launcher = (*watch, *launch.before, *launch.launcher)
        return (*launcher, *wrapper, *self.profile, output, *self.recorded)

    @property
    def recorded(self) -> tuple[str, ...]:
        """End of the command: the words that nsys runs, i.e. the program with its arguments."""
        launch = self.launch
        return (*_loaded(self.library), *_telling(launch.program, launch.local_rank_at))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the command: name -> value."""
        log = {"NCCL_DEBUG_FILE": str(self.folder.absolute() / "nccl.%h.%p.log")}
        return {**self.variables, **(_NCCL_LOG | log if self.nccl_log else {})}

    @property
    def script(self) -> str:
        """Shell command that creates the folder and records into it."""
        return f"mkdir -p {shlex.quote(str(self.folder.absolute()))} && {self}"

    def __str__(self) -> str:
        """Return the command as a line for a shell."""
        variables = [f"{key}={shlex.quote(value)}" for key, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.command)])


def plan(
    program: Sequence[str],
    wanted: Wanted,
    nsys: Nsys,
    folder: Path,
    *,
    one_report: bool = False,
) -> Plan:
    """Return the plan for recording a program.

    Parameters
    ----------
    program
        Command of the program. Under a known launcher (`LAUNCHERS`) each rank gets an nsys and a
        report of its own.
    wanted
        Kinds of data to record.
    nsys
        The nsys that records.
    folder
        Folder for the reports.
    one_report
        Whether to record a launcher and all its ranks into one report.

    Raises
    ------
    UsageError
        If there is no program, or this nsys cannot record the wanted data.
    """
    launch = split(program)
    if one_report and wanted.has_windows and launch.launcher:
        raise UsageError(
            "each rank counts the steps of its windows itself", "leave out --one-report"
        )
    wanted = _with_mpi(wanted, launch)
    library = wanted.mpi_library if wanted.mpi else None
    if one_report:
        command = _telling(launch.program, launch.local_rank_at)
        full_command = (*launch.before, *launch.launcher, *_loaded(library), *command)
        launch, library = Launch((), full_command), None
    elif not launch.launcher:
        library = None
    elif wanted.gpu_metrics is not None or wanted.nic_metrics:
        raise UsageError(
            "counters of GPUs and NICs cover the machine, and each rank would sample them",
            "record all ranks of a machine into one report: --one-report",
        )
    if wanted.nvidia_smi and shutil.which("nvidia-smi") is None:
        raise UsageError("there is no nvidia-smi here", "leave out --nvidia-smi")
    by_range = wanted.has_windows or wanted.capture_range not in {None, CUDA_RANGE}
    variables = {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"} if by_range else {}
    variables |= wanted.hook(os.environ)
    profile = tuple(profile_command(nsys, wanted))
    return Plan(
        launch, profile, folder, variables, wanted.nccl_log, library, wanted.nvidia_smi, str(nsys)
    )


def _with_mpi(wanted: Wanted, launch: Launch) -> Wanted:
    """Add tracing of the launcher's MPI, if nsys can find its library.

    A Python program loads MPI later than nsys looks for it, and crashes then, unless the library is
    preloaded. Without a library MPI is traced only on request.
    """
    requested = wanted.mpi or (launch.mpi if "mpi" in wanted.traces else None)
    if launch.mpi is None or not is_python(launch.program):
        return replace(wanted, mpi=requested or launch.mpi)
    library = wanted.mpi_library or mpi_library(launch.launcher[0], launch.mpi)
    if library is None:
        return replace(wanted, mpi=requested)
    return replace(wanted, mpi=requested or launch.mpi, mpi_library=str(library))


def _rank_variable(names: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the environment variable that has the rank, and a command prefix to set it.

    With several `names`, the prefix sets it to the first of them that is set, else to 0.
    """
    if names is None or "," not in names:
        return names, ()
    value = "0"
    for name in reversed(names.split(",")):
        value = f"${{{name}:-{value}}}"
    return _OUR_RANK, ("sh", "-c", f'{_OUR_RANK}="{value}" exec "$0" "$@"')


def _telling(program: tuple[str, ...], at: int | None) -> tuple[str, ...]:
    """Return a program's command with the local rank as an argument at word `at`, if not None."""
    if at is None:
        return program
    before, behind = shlex.join(program[:at]), shlex.join(program[at:])
    return ("sh", "-c", f'exec {before} "--local_rank=$LOCAL_RANK" {behind}'.rstrip())


def _loaded(library: str | None) -> tuple[str, ...]:
    """Return the command prefix that preloads a library."""
    return () if library is None else ("sh", "-c", _LOADING, library)


def by_window(reports: Sequence[Path]) -> dict[int, list[Path]]:
    """Group reports by recording window (range of steps), by the number in their name.

    ``rank0.2.nsys-rep`` is of window 2; a report without a number is of window 1.
    """
    found: dict[int, list[Path]] = {}
    for path in reports:
        number = path.stem.rpartition(".")[2]
        found.setdefault(int(number) if number.isdecimal() else 1, []).append(path)
    return dict(sorted(found.items()))


def reports_in(folder: Path) -> list[Path]:
    """Return the reports in a folder, ordered by the integers in their names."""
    found = (path for path in folder.glob("*") if path.suffix in _ENDINGS)
    return sorted(found, key=lambda path: (len(path.name), path.name))
