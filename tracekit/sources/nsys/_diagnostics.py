"""What nsys says went wrong while it recorded: events that were lost."""

from __future__ import annotations

from tracekit.sources._tables import ExportFile

DIAGNOSTICS = "DIAGNOSTIC_EVENT"
_LOST = (
    r"(?i)\b(lost|drop(ped|ping)?|discard(ed|ing)?|overflow\w*|overwritten|incomplete|ran out of"
    r"|not all|might have not been started)\b"
)
_MOST = 3
_LENGTH = 200


def lost_events(file: ExportFile) -> tuple[str, ...]:
    """Return what the recorder says of events that it lost, one sentence for each text of it.

    The texts are free; most of what is told is of no concern (buffers that are flushed, counts of
    events, libraries that are not traced), so only those that speak of a loss are taken.
    """
    if not file.has(DIAGNOSTICS, "text"):
        return ()
    texts = file.read(DIAGNOSTICS, {"text": "text"})["text"].drop_nulls()
    lost = texts.filter(texts.str.contains(_LOST)).unique(maintain_order=True)
    first = lost.str.split("\n").list.first().str.strip_chars().str.slice(0, _LENGTH)
    told = tuple(f"nsys says of the recording: {text}" for text in first.head(_MOST))
    more = len(lost) - _MOST
    return (*told, f"nsys says {more} things more of what was lost") if more > 0 else told
