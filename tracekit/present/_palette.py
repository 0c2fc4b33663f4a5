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
    "input": "#DDAA33",
    "between_steps": "#DDCC77",
    "host_delay": "#332288",
    "allocation": "#AA4499",
    "loading": "#88CCEE",
    "compiling": "#6699CC",
    "off_cpu": "#CC6677",
    "waiting_call": "#882255",
    "launch_latency": "#44AA99",
    "behind_weight_update": "#117733",
    "behind_collective": "#225555",
    "behind_stage": "#999933",
    "profiler": "#663333",
    "unexplained": "#BBBBBB",
}
"""Colour of each cause of idle time."""

DARK_COLOURS = {
    "#332288": "#7D71E3", "#882255": "#C49DC0", "#117733": "#B5B576", "#225555": "#628C96",
    "#663333": "#B57F5B",
}  # fmt: skip
"""Colours that replace the darkest ones on dark pages: colour -> colour."""

PATH_COLOURS = {
    **{f"gpu, {stage}": colour for stage, colour in STAGE_COLOURS.items()},
    "gpu": "#56B4E9",
    "comm": "#AA4499",
    "host": "#88CCEE",
    **{cause: CAUSE_COLOURS[cause] for cause in ("input", "between_steps", "off_cpu")},
    "latency": "#882255",
    "unexplained": "#CCCCCC",
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
