"""How results look: tables on a terminal and in a notebook, and the formats for other programs.

Nothing here computes a result. polars and rich are imported when something is shown, not before.
"""

from tracekit.present._formats import to_csv, to_json, to_markdown, to_parquet
from tracekit.present._notebook import html
from tracekit.present._palette import (
    ACCENT,
    ANSWER_COLOURS,
    IDLE_COLOUR,
    KIND_COLOURS,
    STAGE_COLOURS,
    colour_of,
)
from tracekit.present._terminal import records, terminal
from tracekit.present._text import printable

__all__ = [
    "ACCENT", "ANSWER_COLOURS", "IDLE_COLOUR", "KIND_COLOURS", "STAGE_COLOURS", "colour_of",
    "html", "printable", "records", "terminal", "to_csv", "to_json", "to_markdown", "to_parquet",
]  # fmt: skip
