"""Choose runs by names, paths and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tracekit.errors import UsageError
from tracekit.runs._opening import open as open_run
from tracekit.runs._run import Run
from tracekit.store import Store
from tracekit.support.files import StrPath

Reference = StrPath | Run
"""How a run may be named."""


def select_runs(
    references: Sequence[Reference] = (),
    *,
    where: Mapping[str, str] | None = None,
    store: StrPath | None = None,
) -> list[Run]:
    """Return the runs of a study: named ones, and those with some labels.

    Parameters
    ----------
    references
        Runs; or their names, beginnings of ids, ``@latest``, or trace files.
    where
        Labels that all runs of the study carry. Without references and labels, all runs of the
        store are meant.

    Raises
    ------
    UsageError
        If there is no such run.
    """
    named = [
        reference if isinstance(reference, Run) else open_run(reference, store=store)
        for reference in references
    ]
    if references and not where:
        return named
    place = Store.discover(None if store is None else Path(store))
    known = {run.id for run in named}
    labelled = [Run(record, place) for record in place.runs(where) if record.id not in known]
    if not named and not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in (where or {}).items())
        raise UsageError(
            f"no run with {wanted}" if wanted else "the store holds no runs",
            "`tracekit runs` lists runs and labels; `tracekit ingest FILE --label KEY=VALUE` adds",
        )
    return [*named, *labelled]
