"""What is asked of a run in Python in another type than its options have: one of our errors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import tracekit
from tracekit.errors import InputError, TracekitError, UsageError
from tracekit.runs import DECLARED
from tracekit.support.questions import Option, require_valid

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp_4gpu.sqlite"
WRONG: dict[str, tuple[Any, ...]] = {
    "skip": ("x", -1, 1.5, None), "top": ("x", 0, 1.5), "by": (3, "nope", ["nope"], ()),
    "where": (3, "nope=1", ["no condition"]), "sort": (3, "nope"),
    "iterations": ("a", (2, 1), (1.5, 2), ("a", "b"), (1, 2, 3), ()),
    "between": (5, "x", (1,), (1.0, 2.0), (7, 3)), "topology": (3,), "nccl_logs": (3,),
    "sizes": (3,), "inclusive": ("x",), "depth": (0,), "longest": (0,), "kernels": (0,),
    "ranks": (1,),
}  # fmt: skip
"""Values that an option cannot have, by its name."""


@pytest.fixture(scope="module")
def run(samples_read_once: None, tmp_path_factory: pytest.TempPathFactory) -> tracekit.Run:
    return tracekit.ingest(SAMPLE, store=tmp_path_factory.mktemp("wrong") / "store")[0]


@pytest.mark.parametrize("name", [
    name for name, each in DECLARED.items() if not (each.is_of_runs or each.is_of_files)
])  # fmt: skip
def test_wrong_values_are_refused_in_our_words(run: tracekit.Run, name: str) -> None:
    options = DECLARED[name].signature_of("tracekit.Answer").parameters
    tried = [(option, value) for option in WRONG if option in options for value in WRONG[option]]
    assert len(tried) > 4
    for option, value in tried:
        try:
            getattr(run, name)(**{option: value})
        except TracekitError:
            continue
        pytest.fail(f"{name}({option}={value!r}) is answered")


@pytest.mark.slow
def test_steps_are_meant_alike(run: tracekit.Run) -> None:
    for ask in (run.breakdown, run.critical_path):
        one, two = ask(iterations=(1, 1)), ask(iterations=(1, 2))
        assert not one.equals(two)
        assert all(ask(iterations=asked).equals(one) for asked in ("1", 1, (1,)))
        assert all(ask(iterations=asked).equals(two) for asked in ("1:2", [1, 2]))


def test_other_doors(run: tracekit.Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stage 'XP' is unknown: choose among FP, BP"):
        run.breakdown(where="stage=XP")
    assert run.breakdown(where="stage=ME", by="stage,kind").height >= 0
    with pytest.raises(UsageError, match="skip 'warm' is unknown: choose among auto"):
        run.breakdown(skip="warm")
    with pytest.raises(UsageError, match="root -1 is too small: give 0 or more"):
        tracekit.memory([run], root=-1)
    with pytest.raises(UsageError, match="where 'stage=XP' is of another type"):
        tracekit.stalls([run], where="stage=XP")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="skip 'x' is unknown: choose among auto"):
        tracekit.compare(run, run, skip="x")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="by 3 is of another type"):
        tracekit.compare(run, run, by=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no feature 'nope'"):
        tracekit.project([run], features={"nope": 1})
    with pytest.raises(UsageError, match="top 'x' is of another type"):
        run.diagnose(top="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be read"):
        tracekit.straggler_cost(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="no file"):
        tracekit.nccl_inspector([tmp_path / "nothing.log"])


@pytest.mark.parametrize(
    ("value", "kind", "fits"),
    [
        (3, Any, True), ("x", int, False), (True, int, False), (3, float, True), (None, int, False),
        (None, int | None, True), ("ab", Sequence[str], False), (["ab"], str | Sequence[str], True),
        ("auto", int | Literal["auto"], True), ("x", int | Literal["auto"], False),
    ],
)  # fmt: skip
def test_types_of_options(value: object, kind: Any, *, fits: bool) -> None:
    refused = nullcontext() if fits else pytest.raises(UsageError, match="option")
    with refused:
        require_valid({"option": value}, _taking(kind))


def _taking(kind: Any, least: int | None = None) -> inspect.Signature:
    annotation = Annotated[kind, Option("", least=least)]
    kept = inspect.Parameter("option", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    return inspect.Signature([kept])


@pytest.mark.parametrize("value", [None, 2, 3])
def test_an_option_is_at_least_what_is_declared(value: int | None) -> None:
    require_valid({"option": value}, _taking(int | None, 2))
    with pytest.raises(UsageError, match="option 1 is too small: give 2 or more"):
        require_valid({"option": 1}, _taking(int | None, 2))
