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
    """Say what a run is, what each command can say of it, and how to record what is missing.

    A command can say `none` of what was recorded and did not run. What each recorder records is in
    docs/info.md.
    """
    opened = open_run(run, store)
    warnings = {"warnings": list(opened.warnings)} if opened.warnings else {}
    meta = {**opened.info_meta(), **warnings}
    return Listing("info", opened.name, opened.info(), meta, f"{opened.name} · what it holds")
