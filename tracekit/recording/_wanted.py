"""The options of `tracekit record` that choose which data to record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tracekit.annotation import copy_hooks, variables
from tracekit.errors import UsageError
from tracekit.support.questions import Option

STEPS = 3
"""Default length of a window, in steps."""


@dataclass(frozen=True)
class Wanted:
    """The data to record; each field is an option of `tracekit record`."""

    panel: ClassVar[str] = "What to record"
    """Heading of these options in the help."""

    trace: Annotated[
        str | None,
        Option(
            "APIs to trace, as nsys names them. Default: cuda,nvtx, and mpi under mpirun.", "APIS"
        ),
    ] = None
    mpi: Annotated[
        str | None, Option("openmpi or mpich. Default: that of mpirun.", "MPI", flag="--mpi-impl")
    ] = None
    mpi_library: Annotated[
        str | None,
        Option("The MPI library of a program in Python. Default: that of mpirun.", "PATH"),
    ] = None
    capture_range: Annotated[
        str | None,
        Option(
            "Record only between cudaProfilerStart and cudaProfilerStop (cuda), or in an NVTX"
            " range (name@domain).",
            "RANGE",
        ),
    ] = None
    memory_usage: Annotated[bool, Option("Record the use of GPU memory.")] = False
    gpu_metrics: Annotated[
        str | None, Option("Sample counters of these GPUs: all, or numbers with commas.", "GPUS")
    ] = None
    nccl: Annotated[
        str | None,
        Option(
            "Record events of NCCL 2.28 or later, such as default or coll,p2p; from nsys"
            " 2025.6 on.",
            "EVENTS",
        ),
    ] = None
    nic_metrics: Annotated[bool, Option("Sample counters of network adapters.")] = False
    graph_nodes: Annotated[bool, Option("Record the nodes of CUDA graphs.")] = False
    cpu_samples: Annotated[bool, Option("Sample what CPUs do.")] = False
    nccl_log: Annotated[
        bool, Option("Have NCCL write its rings and trees, for `tracekit links --nccl-log`.")
    ] = False
    nvidia_smi: Annotated[
        bool,
        Option(
            "Keep the machine's topology, for `tracekit links --topology`, and samples of "
            "memory in use, for `tracekit memory --smi`."
        ),
    ] = False
    annotate: Annotated[
        bool, Option("Add NVTX ranges of stages, layers and iterations to a PyTorch program.")
    ] = False
    layers: Annotated[
        int,
        Option(
            "With --annotate: down to which depth layers get ranges. 1: those of the model.",
            "DEPTH",
            least=0,
        ),
    ] = 1
    every: Annotated[
        int | None,
        Option(
            "Annotate a long PyTorch program, and record some steps of every N, from step N"
            " on, into reports of one run.",
            "N",
            least=2,
        ),
    ] = None
    length: Annotated[
        int | None,
        Option("With --every: how many steps. Default: 3.", "STEPS", least=1, flag="--for"),
    ] = None
    attachable: Annotated[
        Path | None,
        Option(
            "Annotate a long PyTorch program, and record the steps that --attach DIR requests"
            " while it runs.",
            "DIR",
        ),
    ] = None
    ring: Annotated[
        Path | None,
        Option(
            "With --annotate or --print-hook: keep the latest ranges in a file of 3.7 MB, to"
            " be read at any time.",
            "FILE",
        ),
    ] = None
    cuda_events: Annotated[
        bool,
        Option(
            "With --ring: keep stages as the GPU came to them in a second file, live.gpu.ring, by"
            " CUDA events. Not tested on a GPU."
        ),
    ] = False
    hook_folder: Annotated[
        Path | None,
        Option(
            "With --annotate or --print-hook: copy the hooks there, for programs that do not"
            " see tracekit, in containers or on other nodes.",
            "DIR",
        ),
    ] = None
    why_idle: Annotated[
        bool, Option("Trace calls of the operating system of 10 us or more: where the host waits.")
    ] = False
    more: Annotated[
        list[str] | None,
        Option(
            "An option of `nsys profile`, such as --nsys-option=--delay=5.",
            "OPTION",
            flag="--nsys-option",
        ),
    ] = None

    @property
    def has_windows(self) -> bool:
        """True if only windows of steps are recorded."""
        return self.every is not None or self.attachable is not None

    @property
    def is_annotated(self) -> bool:
        """True if the program writes NVTX ranges by tracekit's hooks.

        Recording windows of steps needs these ranges.
        """
        return self.annotate or self.has_windows

    @property
    def traces(self) -> tuple[str, ...]:
        """The APIs to trace, such as cuda and nvtx: the names in the option `trace`."""
        names = (self.trace or "").split(",")
        return tuple(name.strip() for name in names if name.strip())

    @property
    def windows(self) -> tuple[int, int] | None:
        """Steps from the start of one recording window to the next, and steps per window.

        None if everything is recorded.
        """
        if self.every is None:
            return None
        return self.every, STEPS if self.length is None else self.length

    def check(self) -> None:
        """Raise `UsageError` for options that need another option, or exclude each other."""
        if self.every is None and self.length is not None:
            raise UsageError("--for is the length of windows", "give the period with --every")
        if self.every is not None and self.attachable is not None:
            raise UsageError("--every chooses which steps are recorded", "leave out --attachable")
        if not self.is_annotated and (self.ring or self.hook_folder):
            raise UsageError("--ring and --hook-folder need an annotated program", "add --annotate")
        if self.cuda_events and self.ring is None:
            raise UsageError("--cuda-events are kept in a ring", "add --ring live.ring")

    def hook(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables that make Python programs load tracekit's hooks.

        Empty if hooks are not asked for. If the option `hook_folder` is set, they are copied there.
        """
        if not self.is_annotated:
            return {}
        folder, ring, attachable = (
            None if path is None else str(path.absolute())
            for path in (self.hook_folder, self.ring, self.attachable)
        )
        folders = {} if folder is None else {"folder": copy_hooks(folder)}
        return variables(
            self.layers, environment, self.windows, ring, attach=attachable,
            cuda_events=self.cuda_events, **folders,
        )  # fmt: skip
