"""How results look: tables, figures, and the formats for other programs.

Nothing here computes a result. polars, rich and plotly are imported when something is shown, not
before.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.present._columns import ShownColumn, duration, percent
    from tracekit.present._compare_figures import changes_figure, comparison_figure
    from tracekit.present._face import FACE
    from tracekit.present._figures import (
        BYTE_UNITS,
        MINUS,
        TIME_UNITS,
        figure_layout,
        figure_text,
        unit_of,
    )
    from tracekit.present._findings import to_junit, to_sarif
    from tracekit.present._formats import to_csv, to_json, to_markdown, to_parquet
    from tracekit.present._heat_figure import heat_figure
    from tracekit.present._kernel_names import readable_names, with_readable_names
    from tracekit.present._latency_figures import histogram_figure, latency_figure
    from tracekit.present._link_figures import matrix_figure, utilisation_figure
    from tracekit.present._machine_figure import machine_figure
    from tracekit.present._machine_layout import machine_layout
    from tracekit.present._memory_figures import memory_figure, memory_fit_figure
    from tracekit.present._notebook import html
    from tracekit.present._notes import count, notes
    from tracekit.present._overhead_figure import overhead_figure
    from tracekit.present._palette import (
        ACCENT,
        ANSWER_COLOURS,
        CAUSE_COLOURS,
        IDLE_COLOUR,
        KIND_COLOURS,
        STAGE_COLOURS,
        colour_of,
    )
    from tracekit.present._projection_figures import (
        components_figure,
        distribution_figure,
        hardware_figure,
    )
    from tracekit.present._saving import check_figure_file, one_browser, save_figure
    from tracekit.present._scaling_figure import scaling_figure
    from tracekit.present._stage_bars import stage_bars_figure
    from tracekit.present._terminal import records, terminal
    from tracekit.present._text import printable
    from tracekit.present._totals import shown_with_totals

_HOMES = {
    "ACCENT": "tracekit.present._palette",
    "ANSWER_COLOURS": "tracekit.present._palette",
    "BYTE_UNITS": "tracekit.present._figures",
    "MINUS": "tracekit.present._figures",
    "CAUSE_COLOURS": "tracekit.present._palette",
    "FACE": "tracekit.present._face",
    "IDLE_COLOUR": "tracekit.present._palette",
    "KIND_COLOURS": "tracekit.present._palette",
    "STAGE_COLOURS": "tracekit.present._palette",
    "ShownColumn": "tracekit.present._columns",
    "TIME_UNITS": "tracekit.present._figures",
    "changes_figure": "tracekit.present._compare_figures",
    "colour_of": "tracekit.present._palette",
    "comparison_figure": "tracekit.present._compare_figures",
    "components_figure": "tracekit.present._projection_figures",
    "distribution_figure": "tracekit.present._projection_figures",
    "count": "tracekit.present._notes",
    "duration": "tracekit.present._columns",
    "figure_layout": "tracekit.present._figures",
    "figure_text": "tracekit.present._figures",
    "hardware_figure": "tracekit.present._projection_figures",
    "heat_figure": "tracekit.present._heat_figure",
    "histogram_figure": "tracekit.present._latency_figures",
    "html": "tracekit.present._notebook",
    "latency_figure": "tracekit.present._latency_figures",
    "machine_figure": "tracekit.present._machine_figure",
    "machine_layout": "tracekit.present._machine_layout",
    "matrix_figure": "tracekit.present._link_figures",
    "memory_figure": "tracekit.present._memory_figures",
    "memory_fit_figure": "tracekit.present._memory_figures",
    "notes": "tracekit.present._notes",
    "overhead_figure": "tracekit.present._overhead_figure",
    "percent": "tracekit.present._columns",
    "printable": "tracekit.present._text",
    "readable_names": "tracekit.present._kernel_names",
    "records": "tracekit.present._terminal",
    "check_figure_file": "tracekit.present._saving",
    "one_browser": "tracekit.present._saving",
    "save_figure": "tracekit.present._saving",
    "scaling_figure": "tracekit.present._scaling_figure",
    "shown_with_totals": "tracekit.present._totals",
    "stage_bars_figure": "tracekit.present._stage_bars",
    "terminal": "tracekit.present._terminal",
    "to_csv": "tracekit.present._formats",
    "to_json": "tracekit.present._formats",
    "to_junit": "tracekit.present._findings",
    "to_markdown": "tracekit.present._formats",
    "to_parquet": "tracekit.present._formats",
    "to_sarif": "tracekit.present._findings",
    "unit_of": "tracekit.present._figures",
    "utilisation_figure": "tracekit.present._link_figures",
    "with_readable_names": "tracekit.present._kernel_names",
}

__all__ = [
    "ACCENT",
    "ANSWER_COLOURS",
    "BYTE_UNITS",
    "CAUSE_COLOURS",
    "FACE",
    "IDLE_COLOUR",
    "KIND_COLOURS",
    "MINUS",
    "STAGE_COLOURS",
    "TIME_UNITS",
    "ShownColumn",
    "changes_figure",
    "check_figure_file",
    "colour_of",
    "comparison_figure",
    "components_figure",
    "count",
    "distribution_figure",
    "duration",
    "figure_layout",
    "figure_text",
    "hardware_figure",
    "heat_figure",
    "histogram_figure",
    "html",
    "latency_figure",
    "machine_figure",
    "machine_layout",
    "matrix_figure",
    "memory_figure",
    "memory_fit_figure",
    "notes",
    "one_browser",
    "overhead_figure",
    "percent",
    "printable",
    "readable_names",
    "records",
    "save_figure",
    "scaling_figure",
    "shown_with_totals",
    "stage_bars_figure",
    "terminal",
    "to_csv",
    "to_json",
    "to_junit",
    "to_markdown",
    "to_parquet",
    "to_sarif",
    "unit_of",
    "utilisation_figure",
    "with_readable_names",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
