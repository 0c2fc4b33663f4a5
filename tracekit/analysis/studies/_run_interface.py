"""Interface of several runs for questions to them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.model import Run
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    import polars as pl


class Runs(Protocol):
    """Chosen runs, opened on iteration."""

    is_apart: bool
    """Whether the runs were named one by one, so that runs with equal labels are not pooled."""
    is_chosen: bool
    """Whether runs were chosen by name or by label."""

    def __iter__(self) -> Iterator[Run]:
        """Open the runs one by one."""

    def facts(self) -> Mapping[str, Any]:
        """Return the verdicts on the processes of each run, and which runs are simulated."""

    def named(self, reference: Any, /) -> Run:
        """Return another run of the same store."""

    def read_smi(self, path: StrPath, /) -> "pl.DataFrame":
        """Read a file of nvidia-smi samples."""
