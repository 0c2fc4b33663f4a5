"""The runs that a question is put to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.runs._facts import facts_of
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    import polars as pl

    from tracekit.runs._opened import OpenedRun


class Selection:
    """Runs that a question is put to.

    Parameters
    ----------
    runs
        The runs.
    """

    is_apart = is_chosen = True

    def __init__(self, runs: Sequence[OpenedRun] = ()) -> None:
        self.opened = [*runs]

    def __iter__(self) -> Iterator[OpenedRun]:
        return iter(self.opened)

    def facts(self) -> dict[str, Any]:
        """Return the verdicts on the processes of each run, and which runs are simulated."""
        return facts_of([*self])

    def named(self, reference: Any) -> OpenedRun:
        """Return another run."""
        run: OpenedRun = reference
        return run

    def read_smi(self, path: StrPath) -> pl.DataFrame:
        """Return samples of nvidia-smi."""
        from tracekit.sources import read_smi

        return read_smi(Path(path))
