from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tracekit import present
from tracekit.model import KINDS, STAGES
from tracekit.present import PATH_COLOURS
from tracekit.present._compare_figures import VERDICT_COLOURS
from tracekit.present._figures import (
    DARK,
    DARK_SCALES,
    DIVERGING,
    SERIES_COLOURS,
    colour_at,
    readable_on,
)
from tracekit.present._palette import ANSWER_COLOURS
from tracekit.present._waits_figures import BUBBLE_COLOURS, STALL_COLOURS


@pytest.mark.parametrize(
    ("colours", "names"),
    [(present.STAGE_COLOURS, STAGES), (present.KIND_COLOURS, KINDS)],
    ids=["stage", "kind"],
)
def test_every_value_has_a_colour_of_its_own(
    colours: dict[str, str], names: tuple[str, ...]
) -> None:
    assert tuple(colours) == names
    assert len(set(colours.values())) == len(names)
    assert all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in colours.values())


def test_colours_of_stages_mean_stages_alone() -> None:
    others = [
        *present.KIND_COLOURS.values(), *present.CAUSE_COLOURS.values(),
        *ANSWER_COLOURS.values(), *STALL_COLOURS.values(), *BUBBLE_COLOURS.values(),
        *(colour for part, colour in PATH_COLOURS.items() if "gpu, " not in part),
        *VERDICT_COLOURS.values(), *SERIES_COLOURS, present.ACCENT, present.IDLE_COLOUR,
    ]  # fmt: skip
    assert not {*others} & {*present.STAGE_COLOURS.values()}
    for stage, colour in present.STAGE_COLOURS.items():
        assert PATH_COLOURS[f"gpu, {stage}"] == colour


def test_colour_of_a_value() -> None:
    assert present.colour_of("stage", "WU") == present.STAGE_COLOURS["WU"]
    assert present.colour_of("kind", "compute") == present.KIND_COLOURS["compute"]
    assert present.colour_of("name", "WU") is None
    assert present.colour_of("stage", "idle") == present.IDLE_COLOUR
    assert present.colour_of("stage", "window") is None


def test_the_public_list() -> None:
    loaded = {name for name in vars(present) if not name.startswith("_")}
    assert (
        loaded - {"TYPE_CHECKING", "lazily", "pages"} <= set(present.__all__) <= set(dir(present))
    )


def test_importing_it_is_cheap() -> None:
    code = "import sys, tracekit.present as p; print({'polars', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def _light(colour: str) -> float:
    digits = colour[1:] if len(colour) > 4 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("dark", [{}, DARK], ids=["light", "dark"])
def test_lengths_are_readable_on_every_colour(dark: dict[str, str]) -> None:
    """plotly writes #444 on teal, of a contrast of 3.6."""
    told = {**present.KIND_COLOURS, **present.CAUSE_COLOURS, **PATH_COLOURS}
    for colour in {*told.values(), *STALL_COLOURS.values(), *BUBBLE_COLOURS.values()}:
        named = {"white": "#FFFFFF", **dark}
        text = readable_on(colour)
        both = sorted(_light(named.get(each, each)) for each in (text, colour))
        assert (both[1] + 0.05) / (both[0] + 0.05) >= 4.5, colour


def test_more_is_seen_better_on_dark_pages() -> None:
    """The dark end of the scale, all of a link's peak, had a contrast of 1.2 there."""
    lights = [_light(DARK_SCALES[colour_at(n / 8)]) for n in range(9)]
    assert lights == sorted(lights)
    page = _light(DARK["white"]) + 0.05
    assert (lights[0] + 0.05) / page > 1.8
    assert (lights[-1] + 0.05) / page > 9
    both = [(_light(DARK_SCALES[DIVERGING[n]]) + 0.05) / page for n in (0, 3, 6)]
    assert both[1] < 1.5
    assert min(both[0], both[2]) > 5
