"""Every error that the workloads raise on purpose.

WorkloadError
├── OptionError       options are invalid, or exclude each other
├── MissingError      a requested device, library or file does not exist
├── DataError         a data set does not fit the network
└── RankError         a process of the job failed
"""

from __future__ import annotations


class WorkloadError(Exception):
    """Base of all errors of the workloads.

    Parameters
    ----------
    what
        Description of the error and its place, as a clause without a full stop.
    hint
        What the user can do about it.
    """

    exit_code = 2

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return self.what if self.hint is None else f"{self.what}: {self.hint}"


class OptionError(WorkloadError):
    """Error: options are invalid, or exclude each other."""


class MissingError(WorkloadError):
    """Error: a requested device, library or file does not exist."""


class DataError(WorkloadError):
    """Error: a data set does not fit the network."""


class RankError(WorkloadError):
    """Error: a process of the job failed."""

    exit_code = 3
