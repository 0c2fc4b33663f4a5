"""`tracekit info`: what a trace holds."""

from tracekit.cli._options import (
    LATEST,
    RunArgument,
    StoreOption,
    listing,
    open_run,
)
from tracekit.cli._output import Listing


@listing
def info(run: RunArgument = LATEST, store: StoreOption = None) -> Listing:
    """Say what a run holds, what is missing for which feature, and how to record it."""
    opened = open_run(run, store)
    warnings = {"warnings": list(opened.warnings)} if opened.warnings else {}
    meta = {**opened.info_meta(), **warnings}
    return Listing("info", opened.name, opened.info(), meta, f"{opened.name} · what it holds")
