"""`tracekit ingest`: make runs of trace files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.cli._guard import complain
from tracekit.cli._options import (
    IterationOption,
    LabelOption,
    RulesOption,
    StoreOption,
    listing,
    parse_labels,
    rows_frame,
)
from tracekit.cli._output import Listing
from tracekit.cli._progress import progress_bar
from tracekit.errors import InputError, TracekitError, UsageError

if TYPE_CHECKING:
    import tracekit


@listing
def ingest(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Trace files.")],
    *,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the run; only with one file. Default: the file's."),
    ] = None,
    label: LabelOption = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    store: StoreOption = None,
) -> Listing:
    """Make a run of each trace file: read it, find the stage of every op, and store the result.

    A file that is in the store already, whatever its name, is not read again.
    """
    if name is not None and len(files) > 1:
        raise UsageError(
            f"--name {name!r} cannot name {len(files)} files", "ingest them one by one to name them"
        )
    options = {
        "name": name,
        "labels": parse_labels(label or []),
        "rules": rules,
        "iteration": iteration,
        "store": store,
    }
    rows, code = _ingest_all(files, options)
    only = rows[0]["name"] if len(rows) == len(files) == 1 else None
    return Listing("ingest", only, rows_frame(rows), empty="", as_records=True, exit_code=code)


def _ingest_all(files: list[Path], options: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Ingest what can be ingested; a file that cannot is complained about and left out."""
    import tracekit

    rows, code = [], 0
    for file in files:
        try:
            with progress_bar(file) as progress:
                run, is_new = tracekit.ingest(file, progress=progress, **options)
        except TracekitError as error:
            complain(str(error))
            code = error.exit_code
            if not isinstance(error, InputError):
                break
        else:
            rows.append(_row(file, run, is_new=is_new))
    return rows, code


def _row(file: Path, run: "tracekit.Run", *, is_new: bool) -> dict[str, Any]:
    return {
        "name": run.name,
        "id": run.id,
        "file": str(file),
        "status": "ingested" if is_new else "already in the store",
        "labels": [f"{key}={value}" for key, value in run.labels.items()],
        **run.summary(),
        "warnings": list(run.warnings),
    }
