"""Key-value stores (of torch.distributed) by which the processes of a job find each other."""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    Store,
    TCPStore,
    rendezvous,
)

from workloads._errors import MissingError
from workloads._world import Place

__all__ = ["Store", "file_store", "join_store"]

_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")


def file_store(path: str, size: int) -> Store:
    """Return a store in a file, for processes on one host."""
    return FileStore(path, size)


def join_store(place: Place) -> Store:
    """Return the store for the processes of a job that a launcher started.

    Its address is in ``MASTER_ADDR`` and ``MASTER_PORT``, set by torchrun or the user. Without
    these, rank 0 opens a store, and MPI sends its address to the others.

    Raises
    ------
    MissingError
        If there is neither an address nor MPI.
    """
    if all(name in os.environ for name in _ADDRESS):
        store: Store
        store, _, _ = next(rendezvous("env://", place.rank, place.size))
        return store
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except ImportError as error:
        raise MissingError(
            "the processes do not know where to find each other",
            f"set {' and '.join(_ADDRESS)} for all of them, or install mpi4py",
        ) from error
    return _store_told_by(mpi.COMM_WORLD, place, mpi.COMM_TYPE_SHARED)


def _store_told_by(everyone: Any, place: Place, shared: int) -> Store:
    """Open a store in the process of rank 0, and send its address to the others by MPI."""
    on_host = everyone.Split_type(shared).Get_size()
    here = "127.0.0.1" if on_host == place.size else socket.gethostname()
    opened = (
        TCPStore(here, 0, place.size, is_master=True, wait_for_workers=False)
        if place.rank == 0
        else None
    )
    host, port = everyone.bcast((here, opened.port) if opened else None)
    return opened or TCPStore(host, port, place.size, is_master=False, wait_for_workers=False)
