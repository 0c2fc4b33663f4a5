"""Labels of a run (key and value) in its NVTX names; rank and job in its environment variables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tracekit.support.labels import MOST, label_fault

_RANKS = (
    "RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
)  # fmt: skip
"""Environment variables in which launchers give a process its rank, most reliable first."""
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which launchers give the number of ranks."""

_JOBS = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "LSB_JOBID", "PBS_JOBID", "PMIX_NAMESPACE",
    "TORCHELASTIC_RUN_ID", "MASTER_PORT",
)  # fmt: skip
"""Environment variables with one value in all processes of a job, and another in other jobs."""

VARIABLES = (*_RANKS, *_SIZES, *_JOBS)
"""Environment variables that are read. Others may contain secrets, so they never leave the file."""
_PREFIX = "tracekit"
_SEVERAL = 2
_LABEL = r"(?s)^tracekit[.:]label[ :](?<key>[^\s=]+)=(?<value>.*)$"


@dataclass(frozen=True)
class Launch:
    """Rank, number of ranks and job of a process, as its launcher set them."""

    rank: int | None
    ranks: int | None
    job: str | None
    """``VARIABLE=digest`` for each variable that identifies the job."""


def launch_of(variables: Mapping[str, str]) -> Launch:
    """Return rank, number of ranks and job from the environment variables of a process."""
    return Launch(_number(variables, _RANKS), _number(variables, _SIZES), _job(variables))


def _number(variables: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the integer in the first environment variable of `names` that holds one; else None."""
    found = (variables.get(name, "") for name in names)
    return next((int(text) for text in found if re.fullmatch("[0-9]{1,9}", text)), None)


def _job(variables: Mapping[str, str]) -> str | None:
    """Return hashes of the job's ids (such as SLURM_JOB_ID) as one text; None if no id is set.

    They let jobs be compared without revealing the ids.
    """
    digests = [
        f"{name}={hashlib.sha256(variables[name].encode()).hexdigest()[:12]}"
        for name in _JOBS
        if variables.get(name)
    ]
    return " ".join(digests) or None


class RunLabels:
    """Labels of a run, ``tracekit:label KEY=VALUE``, collected from names of NVTX events.

    Only the first `MOST` keys are kept. A key with several values counts as ambiguous and gives no
    label: a program may write another value in each iteration.
    """

    def __init__(self) -> None:
        self._found = pl.DataFrame(schema={"key": pl.String, "value": pl.String})

    def add(self, names: pl.Series) -> None:
        """Collect the labels in the names of a batch of NVTX events."""
        if names.dtype != pl.String:
            names = names.unique(maintain_order=True).cast(pl.String)
        marked = names.filter(names.str.starts_with(_PREFIX))
        if marked.is_empty():
            return
        found = marked.str.extract_groups(_LABEL).struct.unnest().drop_nulls("key")
        values = pl.concat([self._found, found]).unique(maintain_order=True)
        keys = values["key"].unique(maintain_order=True).head(MOST + 1)
        self._found = values.filter(
            pl.col("key").is_in(keys.implode()), pl.int_range(pl.len()).over("key") < _SEVERAL
        )

    @property
    def _values(self) -> Mapping[str, list[str]]:
        if self._found.is_empty():
            return {}
        grouped = self._found.group_by("key", maintain_order=True).agg("value")
        return dict(grouped.rows())

    @property
    def labels(self) -> Mapping[str, str]:
        """The run's labels, key -> value: those that are valid and have a single value."""
        clear = ((key, values[0]) for key, values in self._values.items() if len(values) == 1)
        return dict([each for each in clear if label_fault(*each) is None][:MOST])

    @property
    def losses(self) -> tuple[str, ...]:
        """Warnings, one sentence each, on unused labels: invalid, ambiguous, or too many."""
        losses = []
        for key, values in self._values.items():
            fault = next(filter(None, (label_fault(key, value) for value in values)), None)
            if fault is not None:
                losses.append(f"a label that the program gave its run {fault} and was left out")
            elif len(values) > 1:
                losses.append(
                    f"the program gave its run the label {key!r} with several values, so none is "
                    "taken"
                )
        if len(self._values) > MOST:
            losses.append(f"the program gave its run more than {MOST} labels; others are left out")
        return tuple(dict.fromkeys(losses))
