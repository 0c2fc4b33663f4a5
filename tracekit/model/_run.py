"""Interfaces through which analyses access a run, or several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.support.files import StrPath

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model._trace import Trace


class Run(Protocol):
    """Interface of a run as analyses use it; `tracekit.Run` implements it."""

    @property
    def id(self) -> str:
        """Id of the run."""

    @property
    def name(self) -> str:
        """Name of the run."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the run: label -> value."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the run."""

    @property
    def trace(self) -> "Trace":
        """Tables of the run."""


class Runs(Protocol):
    """The runs that the user chose for an analysis; iteration opens one after the other."""

    is_apart: bool
    """Whether the runs were named one by one, so that runs with equal labels are not pooled."""
    is_chosen: bool
    """Whether runs were chosen by name or by label."""

    def __iter__(self) -> Iterator[Run]:
        """Open the runs one by one."""

    def facts(self) -> Mapping[str, Any]:
        """Return what each run's processes do, such as training, and which runs are simulated."""

    def named(self, reference: Any, /) -> Run:
        """Return the run to which `reference` refers, from the same store."""

    def read_smi(self, path: StrPath, /) -> "pl.DataFrame":
        """Read a file of nvidia-smi samples."""
