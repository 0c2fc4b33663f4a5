"""One colour per stage and kind, told apart by people with any colour vision.

The stages take the Okabe-Ito colours; kinds, of which there are more, continue with Paul Tol's.
Tables, notebooks and figures all take their colours from here.
"""

from __future__ import annotations

STAGE_COLOURS = {
    "FP": "#0072B2",
    "BP": "#D55E00",
    "WU": "#009E73",
    "IO": "#E69F00",
    "ME": "#CC79A7",
    "OTHER": "#999999",
}
"""Colour of each stage."""

KIND_COLOURS = {
    "compute": "#0072B2",
    "collective": "#009E73",
    "p2p": "#CC79A7",
    "staged": "#D55E00",
    "h2d": "#E69F00",
    "d2h": "#F0E442",
    "d2d": "#56B4E9",
    "h2h": "#882255",
    "memset": "#DDCC77",
    "graph": "#332288",
    "unknown": "#999999",
}
"""Colour of each kind."""

CAUSE_COLOURS = {
    "input": "#E69F00",
    "between_steps": "#DDCC77",
    "late_launch": "#0072B2",
    "allocation": "#332288",
    "loading": "#56B4E9",
    "compiling": "#88CCEE",
    "off_cpu": "#AA4499",
    "waiting_call": "#D55E00",
    "launch": "#44AA99",
    "behind_weight_update": "#009E73",
    "behind_collective": "#117733",
    "behind_stage": "#CC79A7",
    "profiler": "#882255",
    "unexplained": "#999999",
}
"""Colour of each cause of idle time."""

PATH_COLOURS = {
    **{f"gpu, {stage}": colour for stage, colour in STAGE_COLOURS.items()},
    "gpu, ME": "#882255",
    "gpu": "#56B4E9",
    "comm": "#CC79A7",
    "host": "#88CCEE",
    "input": "#DDCC77",
    "latency": "#44AA99",
    "unexplained": "#CCCCCC",
}
"""Colour of each part of a critical path: what a GPU does by its stage, else its cause."""

ANSWER_COLOURS = {"yes": "#009E73", "partly": "#E69F00", "no": "#D55E00"}
"""Colour of an answer to whether something is available."""

ACCENT = "#56B4E9"
"""Colour of a bar that belongs to no stage and no kind."""

IDLE_COLOUR = "#CCCCCC"
"""Colour of time in which a device does nothing."""

SIXTEEN = {
    "#0072B2": "blue", "#D55E00": "red", "#009E73": "green", "#E69F00": "yellow",
    "#CC79A7": "magenta", "#999999": "white", "#56B4E9": "cyan", "#CCCCCC": "bright_black",
    "#F0E442": "bright_yellow", "#882255": "bright_magenta", "#DDCC77": "bright_white",
    "#332288": "bright_blue", "#44AA99": "bright_cyan", "#117733": "bright_green",
}  # fmt: skip
"""Each colour's place among the sixteen of a terminal without more, where the nearest ones of some
would be the same."""

_BY_COLUMN = {
    "stage": {**STAGE_COLOURS, "idle": IDLE_COLOUR},
    "kind": KIND_COLOURS,
    "available": ANSWER_COLOURS,
}


def colour_of(column: str, value: str) -> str | None:
    """Return the colour of a value of a column, or None where it has none of its own.

    Parameters
    ----------
    column
        Name of the column, such as `stage`.
    value
        The value, such as `FP`.
    """
    return _BY_COLUMN.get(column, {}).get(value)
