"""Environment variables of launchers: rank and name of the job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

_RANKS = (
    "RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
)  # fmt: skip
"""Variables in which launchers tell a process its rank, the surest first."""
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables in which they tell it how many ranks there are."""

_JOBS = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "LSB_JOBID", "PBS_JOBID", "PMIX_NAMESPACE",
    "TORCHELASTIC_RUN_ID", "MASTER_PORT",
)  # fmt: skip
"""Variables that have one value in all processes of a job, and another in other jobs."""

VARIABLES = (*_RANKS, *_SIZES, *_JOBS)
"""Variables that are looked at. Others may hold secrets, so they do not even leave the file."""


@dataclass(frozen=True)
class Launch:
    """Rank, number of ranks and job of a process, from its launcher."""

    rank: int | None
    ranks: int | None
    job: str | None
    """``VARIABLE=digest`` for each variable that tells jobs apart."""


def launch_of(variables: Mapping[str, str]) -> Launch:
    """Return the launch of a process from its environment variables."""
    return Launch(_number(variables, _RANKS), _number(variables, _SIZES), _job(variables))


def _number(variables: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the number that the first of some variables holds."""
    found = (variables.get(name, "") for name in names)
    return next((int(text) for text in found if re.fullmatch("[0-9]{1,9}", text)), None)


def _job(variables: Mapping[str, str]) -> str | None:
    """Return what tells jobs apart, as digests: two of them can be compared, and nothing read."""
    told = [
        f"{name}={hashlib.sha256(variables[name].encode()).hexdigest()[:12]}"
        for name in _JOBS
        if variables.get(name)
    ]
    return " ".join(told) or None
