"""Detect whether torchrun or mpiexec started this process as one of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from workloads._errors import OptionError


@dataclass(frozen=True)
class Place:
    """Place of a process in its job: its rank, the number of ranks, and its local rank."""

    rank: int
    size: int
    local_rank: int


# Names of rank, size and local rank: torchrun, Open MPI, MVAPICH, and MPICH and Intel MPI.
_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


def find_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return the place of this process in its job; None if no launcher started it.

    Raises
    ------
    OptionError
        If the launcher's variables are invalid.
    """
    for names in _VARIABLES:
        rank, size, local_rank = map(environment.get, names)
        if rank is not None and size is not None:
            try:
                place = Place(int(rank), int(size), int(local_rank or rank))
            except ValueError:
                place = Place(-1, 0, 0)
            if not 0 <= place.rank < place.size:
                raise OptionError(
                    f"{names[0]}={rank} and {names[1]}={size} are no process of a job",
                    "unset them to train without torchrun and mpiexec",
                )
            return place
    return None
