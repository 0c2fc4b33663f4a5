"""Interface through which analyses of several runs access the runs."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.model import Run
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    import polars as pl


class Runs(Protocol):
    """The runs that the user chose; iteration opens one after the other."""

    is_apart: bool
    """Whether the runs were named one by one, so that runs with equal labels are not pooled."""
    is_chosen: bool
    """Whether runs were chosen by name or by label."""

    def __iter__(self) -> Iterator[Run]:
        """Open the runs one by one."""

    def facts(self) -> Mapping[str, Any]:
        """Return each run's verdict (such as training), and which runs are simulated."""

    def named(self, reference: Any, /) -> Run:
        """Return the run to which `reference` refers, from the same store."""

    def read_smi(self, path: StrPath, /) -> "pl.DataFrame":
        """Read a file of nvidia-smi samples."""
