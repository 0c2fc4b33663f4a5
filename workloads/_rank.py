"""Code of a process of a job on this host, which the first process (rank 0's starter) starts.

Nothing large is imported before this process watches the first one: importing PyTorch takes
seconds, in which the first one may end.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import threading
import traceback
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

from workloads._errors import RankError, WorkloadError
from workloads._options import Options

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


@dataclass(frozen=True)
class Failure:
    """The error for which a process of the job failed.

    `trace` is the traceback of an unexpected error; `is_silent` is true if the process ended
    without a message.
    """

    error: WorkloadError
    trace: str | None = None
    is_silent: bool = False


def work(options: Options, rank: int, count: int, store: str, outcome: Connection) -> None:
    """Train as one process of the job; send the summary, or the failure, to the first process."""
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    _stay_on_this_host(count)

    from workloads._loop import train  # noqa: PLC0415
    from workloads._stores import file_store  # noqa: PLC0415
    from workloads.methods._method import World  # noqa: PLC0415

    world = World(rank, count, rank, partial(file_store, store, count))
    try:
        outcome.send(train(options, world))
    except WorkloadError as error:
        outcome.send(Failure(error))
    except KeyboardInterrupt:
        pass  # The first process got it as well, and says so.
    except Exception as error:  # noqa: BLE001  whatever it is, it is told in the first process
        what = f"the process of rank {rank} failed ({type(error).__name__}: {error})"
        outcome.send(Failure(RankError(what), traceback.format_exc()))


def _end_with_the_first() -> None:
    """End this process when the first one ends, even if that is killed."""
    first = mp.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _stay_on_this_host(count: int) -> None:
    """Limit Gloo to the loopback network, and divide the cores among the processes."""
    if sys.platform in _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    if "OMP_NUM_THREADS" not in os.environ:
        import torch  # noqa: PLC0415

        torch.set_num_threads(max(1, torch.get_num_threads() // count))
