"""One process of a job on this host, which the first one has started.

Nothing heavy is imported before the process has begun to watch the first one: to import PyTorch
takes seconds, in which that may end.
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
    """Why a process failed.

    `trace` is the traceback of an error that nobody foresaw; `is_silent` where the process has
    ended without telling.
    """

    error: WorkloadError
    trace: str | None = None
    is_silent: bool = False


def work(options: Options, rank: int, count: int, store: str, outcome: Connection) -> None:
    """Be one process of the job, and tell what came out."""
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
    """End with the process that has started this one, though it be killed and tells nobody."""
    first = mp.parent_process()
    if first is not None:
        first.join()
        os._exit(1)


def _stay_on_this_host(count: int) -> None:
    """Let Gloo use no network, and the processes share the cores."""
    if sys.platform in _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    if "OMP_NUM_THREADS" not in os.environ:
        import torch  # noqa: PLC0415

        torch.set_num_threads(max(1, torch.get_num_threads() // count))
