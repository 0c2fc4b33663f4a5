"""Command `tracekit study dgx1`: answer the questions of the DGX-1 study for recorded runs."""

from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from tracekit.cli import RunsArgument, command
from tracekit.papers._dgx1_study import study_dgx1
from tracekit.support.questions import Folder, Labels
from tracekit.support.schemas import NO_RUN, Json, by_name, record

if TYPE_CHECKING:
    from tracekit.model import Answer


_QUESTION = record(
    {
        "question": "text: The question.",
        "headline": "text: One sentence that answers it, made of the table.",
        "claims?": by_name(
            "Whether each published finding is true here; null where unknown.",
            "flag or null",
        ),
        "of_runs": "text: Of how many runs it is, and how many are simulated.",
        "per?": "text: What times are means over.",
        "peak_of?": "text: What the peak memory is a maximum over.",
        "mode?": "text: strong or weak scaling.",
        "baseline?": "text: The method that others are compared with.",
    },
    description="What was asked and found.",
)
_ALL = {"of_runs": "text: Of how many runs they are, and how many are simulated."}
_ROWS = "Its table; columns are those of docs/evidence/studies.md."
_TABLE = {"description": _ROWS, "type": "array", "items": {"type": "object"}}
_JSON = Json(
    "study dgx1",
    run=NO_RUN,
    of_rows="A row per question, or with --what its table.",
    row_rules={"additionalProperties": True},
    keys={
        "meta": {
            "description": "With all questions: of_runs; with one (--what), the meta of that part.",
            "anyOf": [record(_ALL), _QUESTION],
        },
        "parts?": by_name(
            "Of all questions: by key, the table of each.",
            record({"title": "text: What its table is.", "meta": _QUESTION, "rows": _TABLE}),
        ),
    },
)


@command(
    "tracekit study dgx1 -o dgx1.html",
    "tracekit study dgx1 --simulated --network lenet",
    "tracekit study dgx1 --what scaling --figure scaling.png",
    "tracekit study dgx1 --sensitivity -o sensitivity.html",
    name="study dgx1",
    figures={"figure": "Draw the answer to the question of --what"},
    writes=[_JSON],
    takes=study_dgx1.answer,
)
def dgx1(
    runs: RunsArgument = None,
    *,
    where: Labels = None,
    store: Folder = None,
    **asked: Any,
) -> "Answer":
    """Answer the questions of the DGX-1 study, published values beside yours.

    The study compares the training of networks on 1 to 8 GPUs. Runs are those with the label
    study=dgx1, as `tracekit record --study dgx1` gives it. An output that ends in .html is a page
    with a table, a figure and a sentence for each question.
    """
    return study_dgx1.answer(
        runs or (), where=where, store=store, say=partial(typer.echo, err=True), **asked
    )
