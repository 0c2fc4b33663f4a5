"""Measures MPI latency by message size: ``mpirun -n 2 python -m workloads.latency``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from workloads._annotate import Annotations, make_annotations, warn_of_lost_ranges
from workloads._command import command
from workloads._errors import OptionError
from workloads._mpi import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI


_FLOAT_BYTES = 4


class Operation(StrEnum):
    """Kind of MPI operation to measure."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    PING_PONG = "ping_pong"


class Latency(NamedTuple):
    """Durations of an MPI operation at one message size, ns: least, median, mean, most.

    These are over the repetitions; the duration of a repetition is the mean over the processes. A
    ping-pong is between the first two processes, and half of its time counts, since it is two
    messages.
    """

    operation: Operation
    size_bytes: int
    min_ns: float
    median_ns: float
    mean_ns: float
    max_ns: float


def sizes(smallest: int, largest: int) -> Iterator[int]:
    """Yield sizes from the smallest on, each twice the one before."""
    size = smallest
    while size <= largest:
        yield size
        size *= 2


def sweep(
    communicator: MPI.Intracomm, size_bytes: int, repeats: int, warm_up: int, notes: Annotations
) -> Iterator[Latency]:
    """Measure each operation with messages of one size; all processes have to call this.

    Results are yielded in the process of rank 0 only.

    Parameters
    ----------
    communicator
        The processes, at least two.
    size_bytes
        Size of a message in bytes, of 4-byte floats.
    repeats, warm_up
        Number of measured repetitions, and of unmeasured ones before.
    notes
        Writer of annotations: one range per operation and size around the measured repetitions, and
        inside it one per MPI call, whose name has the bytes sent or received.
    """
    message = np.ones(size_bytes // _FLOAT_BYTES, np.float32)
    for operation in Operation:
        warms = _action(operation, communicator, message, Annotations())
        for _ in range(warm_up):
            warms()
        communicator.Barrier()
        act = _action(operation, communicator, message, notes)
        with notes.range(f"{operation} of {size_bytes} bytes"):
            own = np.array([_timed(act) for _ in range(repeats)], np.float64)
        if operation is Operation.PING_PONG and communicator.rank > 1:
            own[:] = 0
        total = np.empty_like(own)
        communicator.Reduce(own, total, root=0)
        if communicator.rank == 0:
            taken = total / (4 if operation is Operation.PING_PONG else communicator.size)
            median = float(np.median(taken))
            yield Latency(operation, size_bytes, taken.min(), median, taken.mean(), taken.max())


def _action(
    operation: Operation,
    communicator: MPI.Intracomm,
    message: np.ndarray[Any, np.dtype[np.float32]],
    notes: Annotations,
) -> Callable[[], None]:
    """Return a function with a process's calls for an operation, each in its own range."""
    received = np.empty_like(message)
    rank = communicator.rank
    calls: list[tuple[str, Callable[[], object]]] = []
    if operation is Operation.ALL_REDUCE:
        calls = [("MPI_Allreduce", lambda: communicator.Allreduce(message, received))]
    elif operation is Operation.BROADCAST:
        calls = [("MPI_Bcast", lambda: communicator.Bcast(message, root=0))]
    elif rank <= 1:
        send = ("MPI_Send", lambda: communicator.Send(message, dest=1 - rank))
        receive = ("MPI_Recv", lambda: communicator.Recv(received, source=1 - rank))
        calls = [send, receive] if rank == 0 else [receive, send]
    named = [(f"{function} {message.nbytes} bytes", call) for function, call in calls]

    def act() -> None:
        for name, call in named:
            with notes.range(name):
                call()

    return act


def _timed(act: Callable[[], object]) -> int:
    begun = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - begun


def latency(
    *,
    smallest: Annotated[
        int, typer.Option("--smallest", min=4, metavar="BYTES", help="The first size.")
    ] = 4,
    largest: Annotated[
        int, typer.Option("--largest", min=4, metavar="BYTES", help="The last, doubling.")
    ] = 4 << 20,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of each size.")] = 20,
    warm_up: Annotated[int, typer.Option("--warm-up", min=0, help="Not measured.")] = 3,
    nvtx: Annotated[bool, typer.Option("--nvtx/--no-nvtx", help="Annotate.")] = True,
) -> None:
    """Measure how long all-reduces, broadcasts and messages of MPI take by their size."""
    if smallest % _FLOAT_BYTES:
        raise OptionError(
            f"messages are floats of {_FLOAT_BYTES} bytes, and {smallest} bytes are no whole number"
            " of them",
            f"give --smallest {smallest - smallest % _FLOAT_BYTES}",
        )
    notes = make_annotations(wanted=nvtx, layers=False)
    mpi = load_mpi()
    everyone = mpi.COMM_WORLD
    if everyone.size == 1:
        raise OptionError(
            "one process has nobody to exchange messages with",
            "run mpirun -n 2 python -m workloads.latency",
        )
    if nvtx and everyone.rank == 0:
        warn_of_lost_ranges()
    say = typer.echo if everyone.rank == 0 else _say_nothing
    say(f"{'operation':<12}{'bytes':>10}{'min':>12}{'median':>12}{'mean':>12}{'max (us)':>12}")
    for size in sizes(smallest, largest):
        for each in sweep(everyone, size, repeats, warm_up, notes):
            numbers = "".join(f"{number / 1000:>12.2f}" for number in each[2:])
            say(f"{each.operation:<12}{each.size_bytes:>10}{numbers}")
    mpi.Finalize()


def _say_nothing(text: str) -> None:
    del text


app = command(
    latency,
    "Examples:\n  mpirun -n 2 python -m workloads.latency\n"
    "  mpirun -n 2 python -m workloads.latency --largest 65536 --repeats 100",
)

if __name__ == "__main__":
    app(prog_name="python -m workloads.latency")
