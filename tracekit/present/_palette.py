"""Colours of stages and kinds, distinguishable with any colour vision.

Stages have the Okabe-Ito colours, which are used for nothing else; all else has Paul Tol's. Tables,
notebooks and figures share these colours.
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
    "compute": "#88CCEE",
    "collective": "#44AA99",
    "p2p": "#AA4499",
    "staged": "#882255",
    "h2d": "#DDAA33",
    "d2h": "#CC6677",
    "d2d": "#332288",
    "h2h": "#999933",
    "memset": "#DDCC77",
    "graph": "#117733",
    "unknown": "#BBBBBB",
}
"""Colour of each kind."""

CAUSE_COLOURS = {
    "input": "#B28659",
    "between_steps": "#8F7C5D",
    "host_delay": "#332288",
    "allocation": "#AA4499",
    "loading": "#3091F2",
    "compiling": "#8C85CC",
    "off_cpu": "#CC6677",
    "waiting_call": "#882255",
    "launch_latency": "#5B8C8C",
    "behind_weight_update": "#117733",
    "behind_collective": "#225555",
    "behind_stage": "#7A8C31",
    "profiler": "#663333",
    "unexplained": "#666666",
}
"""Colour of each cause of idle time."""

DARK_COLOURS = {
    "#332288": "#7D71E3", "#882255": "#C49DC0", "#117733": "#B5B576", "#225555": "#628C96",
    "#663333": "#B57F5B", "#B28659": "#E5C72E", "#3091F2": "#99CCFF", "#5B8C8C": "#ADD9BC",
    "#666666": "#DDDDDD",
}  # fmt: skip
"""Colours that replace others on dark pages: colour -> colour."""

PATH_COLOURS = {
    **{f"gpu, {stage}": colour for stage, colour in STAGE_COLOURS.items()},
    "gpu": "#56B4E9",
    "comm": "#AA4499",
    "copy": CAUSE_COLOURS["compiling"],
    "host": CAUSE_COLOURS["loading"],
    **{each: CAUSE_COLOURS[each] for each in ("input", "between_steps", "off_cpu", "unexplained")},
    "latency": "#882255",
}
"""Colour of each part of a critical path: GPU work by stage, other time by cause."""

ANSWER_COLOURS = {"yes": "#117733", "partly": "#DDAA33", "no": "#CC6677"}
"""Colour of an answer to whether something is available."""

ACCENT = "#56B4E9"
"""Colour of a bar that belongs to no stage and no kind."""

IDLE_COLOUR = "#CCCCCC"
"""Colour of idle time."""

SIXTEEN = {
    "#0072B2": "blue", "#D55E00": "red", "#009E73": "green", "#E69F00": "yellow",
    "#CC79A7": "magenta", "#999999": "white", "#56B4E9": "cyan", "#CCCCCC": "bright_black",
    "#88CCEE": "cyan", "#44AA99": "bright_cyan", "#AA4499": "bright_magenta",
    "#882255": "magenta", "#DDAA33": "bright_yellow", "#CC6677": "bright_red",
    "#332288": "bright_blue", "#999933": "yellow", "#DDCC77": "bright_white",
    "#117733": "bright_green", "#BBBBBB": "white",
}  # fmt: skip
"""Colours on terminals with sixteen colours: colour -> name, chosen so that they differ."""

_BRIGHT = 0.18

_BY_COLUMN = {
    "stage": {**STAGE_COLOURS, "idle": IDLE_COLOUR},
    "kind": KIND_COLOURS,
    "available": ANSWER_COLOURS,
}


def colour_of(column: str, value: str) -> str | None:
    """Return the colour of a value in a column, such as `FP` in `stage`; None if it has none."""
    return _BY_COLUMN.get(column, {}).get(value)


def ink_on(colour: str) -> str:
    """Return black or white, whichever contrasts more with a colour."""
    red, green, blue = ((int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    return "#111" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > _BRIGHT else "#fff"
