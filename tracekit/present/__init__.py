"""Presentation of results: tables, figures, pages, and data formats.

Nothing here computes a result. polars, rich and plotly are imported when something is shown, not
before.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.model import readable_names, with_readable_names
    from tracekit.present._columns import ShownColumn
    from tracekit.present._compare_figures import changes_figure, comparison_figure
    from tracekit.present._data_formats import (
        RENDERER,
        html,
        to_csv,
        to_json,
        to_junit,
        to_markdown,
        to_parquet,
        to_sarif,
    )
    from tracekit.present._figures import MINUS, Heading, figure_layout, figure_text
    from tracekit.present._heat_figure import heat_figure
    from tracekit.present._latency_figures import histogram_figure, latency_figure
    from tracekit.present._link_figures import matrix_figure, utilisation_figure
    from tracekit.present._machine_figure import machine_figure
    from tracekit.present._machine_layout import machine_layout
    from tracekit.present._memory_figures import memory_figure, memory_fit_figure
    from tracekit.present._notes import notes, with_headline
    from tracekit.present._palette import (
        ACCENT,
        CAUSE_COLOURS,
        IDLE_COLOUR,
        KIND_COLOURS,
        PATH_COLOURS,
        STAGE_COLOURS,
        colour_of,
    )
    from tracekit.present._saving import check_figure_file, one_browser, save_figure
    from tracekit.present._scaling_figure import scaling_figure
    from tracekit.present._stage_figures import stage_bars_figure
    from tracekit.present._study_figures import overhead_figure
    from tracekit.present._terminal import records, terminal
    from tracekit.present._waterfall import stage_name
    from tracekit.support.wording import (
        BYTE_UNITS,
        TIME_UNITS,
        count,
        duration,
        percent,
        printable,
        size_text,
        unit_of,
    )

__getattr__, __dir__ = lazily(__name__)
