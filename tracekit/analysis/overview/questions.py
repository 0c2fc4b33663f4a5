"""Declaration of the command `info`: its options and columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Protocol, Unpack

from tracekit import model
from tracekit.analysis import facts
from tracekit.support.columns import keys
from tracekit.support.questions import ChosenRows, Option, question
from tracekit.support.schemas import STAGE_SOURCES, STAGES, Json, either, one

if TYPE_CHECKING:
    from tracekit.model import Answer, Trace


class Run(model.Run, Protocol):
    """A run, with the tables of each report (trace file) that it was ingested from."""

    @property
    def reports(self) -> "Sequence[Trace]":
        """The stored tables of each report of the run, one `Trace` per report."""


_INFO = Json(
    "info",
    meta={
        "file": "text or null: Names of the report files.",
        "format": "text or null: Their recognised format.",
        "schema_version": "text or null: Version of their schema, as stated in the files.",
        "product": "text or null: Product and version that wrote them.",
        "host": "text or null: Host that they were recorded on.",
        **keys("verdict", "given?", "cut?", "weak?"),
        "evidence?": {
            **one(
                "texts: Evidence for verdicts and stages, process by process, one sentence each."
            ),
            "minItems": 1,
        },
        **keys("warnings?"),
    },
    of_rows="Answers of commands, and kinds of data; with --stages the stage of ops by each "
    "source, beside the final one.",
    rows={
        "command?": "text or null: The command that answers it; null for a kind of data.",
        "feature?": "text: What the command answers, or a kind of data.",
        "available?": "one of yes, partly, none, no: Whether the run has what it needs; `none`: "
        "it was recorded, and nothing of the kind ran.",
        "found?": "text or null: What was found, in words.",
        "record_with?": "text or null: How the rest is recorded; null where nothing is missing.",
        "stage?": f"one of {STAGES}: Stage of the ops.",
        "stage_source?": f"one of {STAGE_SOURCES}: Source that decided.",
        "other_source?": f"one of {STAGE_SOURCES}: A source of stages for them; the one that "
        "decided is among these.",
        "other_stage?": f"one of {STAGES}: The stage by this source alone.",
        "agrees?": "flag: Whether the two stages are the same.",
        "ops?": "count: Number of ops.",
        "total_ns?": "count: Sum of their durations.",
        "share?": "share or null: total_ns over that of all ops; null where this is 0.",
    },
    row_rules={
        "oneOf": either(
            "command feature available found record_with",
            "stage stage_source other_source other_stage agrees ops total_ns share",
        )
    },
)

_INFO_CLOCKS = Json(
    "info clocks",
    typed="info --clocks",
    rows={
        "report": "integer: Number of the report in the run.",
        "file": "text or null: Name of its file.",
        "clock": "text: Its clock; reports with the same one can be compared.",
        "known_by": "one of session_start, collectives, messages, given or null: How that is "
        "known; null for a report on its own.",
        "offset_ns": "integer: Offset added to its times.",
        "drift_ppm": "number: By how much its own clock was stretched, in millionths.",
        "sessions_say_ns": "integer or null: The offset by the starts of sessions.",
        "against": "integer or null: The report that it was compared with.",
        "calls": "integer or null: How many calls of both were matched.",
        "median_call_ns": "integer or null: Median length of these, of the participant that came "
        "last.",
        "p5_ns": "integer or null: 5th percentile of the remaining differences of their ends.",
        "p95_ns": "integer or null: 95th percentile of these differences.",
        "bound_ns": "integer or null: Largest error of its times on that clock; null where "
        "unknown.",
        "steps": "integer: How often its own clock was set anew.",
        "violations": "integer or null: How many calls end before they have begun in the other "
        "report, by over 2 us.",
        "messages": "integer or null: Number of messages between both whose match is certain.",
        "early_messages": "integer or null: How many of these are received before they are sent, "
        "by over 2 us.",
        "evidence": "text or null: Evidence for the clock, or why none is known.",
    },
)


@question(
    "tracekit info",
    "tracekit info trace.sqlite --format json",
    opened=(),
    writes=_INFO,
    also=[_INFO_CLOCKS],
)
def info(
    run: Run,
    *,
    stages: Annotated[
        bool, Option("Show how stages are known, and where sources of stages disagree.")
    ] = False,
    clocks: Annotated[
        bool, Option("List the clock of each report instead, and how it is known.")
    ] = False,
    **_: Unpack[ChosenRows],
) -> "Answer":
    """Show the contents of a run, the questions it can answer, and how to record missing data.

    In the column `available`, `none` means that the recorder looks for such data (for example
    collectives), but the program had none. docs/needs.md lists the data of each recorder.
    """
    from tracekit.analysis.clocks import clock_evidence
    from tracekit.analysis.overview._features import features

    if clocks:
        known = clock_evidence(run.reports)
        title = "clocks of its reports"
        return model.Answer(rows=known, title=title, as_records=True, command="info clocks")
    evidence = facts.verdict_evidence(run.trace)
    found = model.Answer(
        rows=facts.confusion(run.trace) if stages else features(run.trace),
        meta={
            **facts.identify(run.trace),
            **facts.verdict_meta(run.trace),
            **({"evidence": evidence} if evidence else {}),
        },
        title="stages by each source, by GPU time" if stages else "contents",
        empty="no ops" if stages else "no rows",
        command="info",
    )
    return found.warning(run.warnings)
