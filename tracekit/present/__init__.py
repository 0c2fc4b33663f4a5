"""How results look: tables, figures, and the formats for other programs.

Nothing here computes a result. polars, rich and plotly are imported when something is shown, not
before.
"""

from tracekit.present._compare_figures import changes_figure, comparison_figure
from tracekit.present._figures import figure_layout, figure_text, save_figure
from tracekit.present._formats import to_csv, to_json, to_markdown, to_parquet
from tracekit.present._heat_figure import heat_figure
from tracekit.present._latency_figures import histogram_figure, latency_figure
from tracekit.present._link_figures import matrix_figure, utilisation_figure
from tracekit.present._machine_figure import machine_figure
from tracekit.present._memory_figures import memory_figure, memory_fit_figure
from tracekit.present._notebook import html
from tracekit.present._overhead_figure import overhead_figure
from tracekit.present._palette import (
    ACCENT,
    ANSWER_COLOURS,
    IDLE_COLOUR,
    KIND_COLOURS,
    STAGE_COLOURS,
    colour_of,
)
from tracekit.present._scaling_figure import scaling_figure
from tracekit.present._stage_bars import stage_bars_figure
from tracekit.present._terminal import records, terminal
from tracekit.present._text import printable

__all__ = [
    "ACCENT", "ANSWER_COLOURS", "IDLE_COLOUR", "KIND_COLOURS", "STAGE_COLOURS", "changes_figure",
    "colour_of", "comparison_figure", "figure_layout", "figure_text", "heat_figure",
    "histogram_figure", "html", "latency_figure", "machine_figure", "matrix_figure",
    "memory_figure", "memory_fit_figure", "overhead_figure", "printable", "records", "save_figure",
    "scaling_figure", "stage_bars_figure", "terminal", "to_csv", "to_json", "to_markdown",
    "to_parquet", "utilisation_figure",
]  # fmt: skip
