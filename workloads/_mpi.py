"""Access to MPI, imported only when needed: importing mpi4py.MPI joins the processes of a job."""

from __future__ import annotations

import ctypes
import os
import re
from importlib.util import find_spec
from typing import Any

from workloads._errors import MissingError
from workloads._tell import tell

HOW_TO_GET_MPI = "pip install 'tracekit[workloads]' mpich"

_TRACER = re.compile(r"libToolsInjection(OpenMPI|MPICH)")
"""Form of the library that nsys preloads to trace MPI."""


def require_mpi4py() -> None:
    """Raise an error if mpi4py is not installed.

    Raises
    ------
    MissingError
        If mpi4py is not installed.
    """
    if find_spec("mpi4py") is None:
        raise MissingError("the package mpi4py is not installed", HOW_TO_GET_MPI)


def load_mpi() -> Any:
    """Return the module ``mpi4py.MPI``, which joins the processes of a job.

    The caller has to call ``Finalize`` at the end, but not after a failure: a process that ends
    without it makes mpiexec end the others, which would otherwise wait forever.

    Raises
    ------
    MissingError
        If there is no MPI library, or no mpi4py.
    """
    require_mpi4py()
    _warn_of_crash()
    import mpi4py  # noqa: PLC0415

    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise MissingError(f"mpi4py finds no MPI library ({error})", HOW_TO_GET_MPI) from error
    return MPI


def _warn_of_crash() -> None:
    """Warn that nsys may crash the program, if it traces MPI and the library is loaded later."""
    is_traced = _TRACER.search(os.environ.get("LD_PRELOAD", "")) is not None
    if is_traced and not hasattr(ctypes.CDLL(None), "PMPI_Init"):
        tell(
            "nsys traces MPI, whose library mpi4py loads later than nsys looks for it: if this "
            "crashes, put the library behind what nsys preloads, as in: nsys profile -t mpi,nvtx "
            "bash -c 'LD_PRELOAD=$LD_PRELOAD:/path/to/libmpi.so exec python ...'"
        )
