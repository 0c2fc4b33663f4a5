from __future__ import annotations

import itertools
import re
import subprocess
import sys

import numpy as np
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
from tracekit.present.pages import view_page

COLOUR_VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
"""What is seen of red, green and blue light (Machado, Oliveira and Fernandes 2009)."""


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


def _linear(colour: str) -> list[float]:
    digits = colour[1:] if len(colour) > 4 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def _light(colour: str) -> float:
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), _linear(colour), strict=True))


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_light(one), _light(other)))
    return (high + 0.05) / (low + 0.05)


def _apart(one: str, other: str) -> float:
    """Return the distance of two colours in percent of Oklab, for the eyes that see it least."""
    cones = [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696],
             [0.08830246, 0.28171884, 0.6299787]]  # fmt: skip
    lab = [[0.21045426, 0.79361779, -0.00407205], [1.9779985, -2.4285922, 0.45059371],
           [0.02590404, 0.78277177, -0.80867577]]  # fmt: skip
    seen = [
        [lab @ np.cbrt(cones @ np.clip(sight @ np.array(_linear(each)), 0, 1))
         for each in (one, other)]
        for sight in map(np.array, COLOUR_VISION.values())
    ]  # fmt: skip
    return 100 * float(min(np.linalg.norm(first - second) for first, second in seen))


def _properties(page: str, *, dark: bool) -> dict[str, str]:
    """Return the properties of a page's style by name, on light or dark screens."""
    light, _, rest = page.partition("@media screen")
    found = dict(re.findall(r"--([\w-]+):([^;}]+)", light))
    return found | (
        dict(re.findall(r"--([\w-]+):([^;}]+)", rest.partition("\n")[0])) if dark else {}
    )


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_causes_of_idle_time_are_seen_on_pages(dark: bool) -> None:
    """On dark ones a late launch had a contrast of 1.5, on light ones time between steps of 1.5."""
    page = view_page("")
    colours = _properties(page, dark=dark)
    causes = {cause: colours[cause] for cause in present.CAUSE_COLOURS}
    for name in ("paper", "raised"):
        behind = re.findall(rf"--{name}:([^;}}]+)", page)[dark]
        assert {cause for cause, each in causes.items() if _contrast(each, behind) < 3} == set()
    pairs = itertools.combinations(causes, 2)
    near = {pair: _apart(*(causes[each] for each in pair)) for pair in pairs}
    assert {pair: apart for pair, apart in near.items() if apart < 2.9} == {}
    stages = {**present.STAGE_COLOURS, **({"FP": "#3A9BDC"} if dark else {})}.values()
    lit = [each for cause, each in causes.items()
           if not dark or each != present.CAUSE_COLOURS[cause]]  # fmt: skip
    assert min(_apart(each, stage) for each in lit for stage in stages) > 2.5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_on_causes_can_be_read(dark: bool) -> None:
    colours = _properties(view_page(""), dark=dark)
    for cause in present.CAUSE_COLOURS:
        assert _contrast(colours[cause], colours[f"on-{cause}"]) >= 4.5, cause


@pytest.mark.parametrize("dark", [{}, DARK], ids=["light", "dark"])
def test_lengths_are_readable_on_every_colour(dark: dict[str, str]) -> None:
    """plotly writes #444 on teal, of a contrast of 3.6."""
    told = {**present.KIND_COLOURS, **present.CAUSE_COLOURS, **PATH_COLOURS}
    for colour in {*told.values(), *STALL_COLOURS.values(), *BUBBLE_COLOURS.values()}:
        named = {"white": "#FFFFFF", **dark}
        text = readable_on(colour)
        assert _contrast(*(named.get(each, each) for each in (text, colour))) >= 4.5, colour


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
