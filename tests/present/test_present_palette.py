from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tracekit import present
from tracekit.model import KINDS, STAGES
from tracekit.present import PATH_COLOURS
from tracekit.present._compare_figures import VERDICT_COLOURS
from tracekit.present._figures import SERIES_COLOURS
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
        *present.ANSWER_COLOURS.values(), *STALL_COLOURS.values(), *BUBBLE_COLOURS.values(),
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
