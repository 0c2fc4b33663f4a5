"""The question `diagnose`: avoidable time of a run, and its causes."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Unpack, cast

from tracekit.analysis import comparison, diagnosis
from tracekit.errors import MissingDataError, UsageError
from tracekit.support.columns import keys
from tracekit.support.files import StrPath
from tracekit.support.quantities import parse_percent
from tracekit.support.questions import ChosenOrder, Option, Topology, Traced, question
from tracekit.support.schemas import Json, record

if TYPE_CHECKING:
    from tracekit.analysis.communication import Traffic
    from tracekit.model import Answer
    from tracekit.runs._opened import OpenedRun

_JSON = Json(
    "diagnose",
    meta={
        "step_ns": "count or null: Mean length of a usual step on a GPU; null where no steps are "
        "known.",
        "steps": "count: Number of usual steps.",
        "devices": "positive: Number of GPUs.",
        "last_step_ns?": "count: Mean length of the last step; left out, as it lacks what ends the "
        "others.",
        "median_step_ns?": "count: Median length of a usual step, if the mean is a tenth longer.",
        "waits_ns?": "count: Mean time per step that a GPU waits for others in collectives, if "
        "no straggler is found, and it is long or one GPU is often the last.",
        "latest?": record(
            {
                "device": "count: The GPU for which the others wait longest in collectives.",
                "last": "count: Number of collectives to which it comes last.",
                "collectives": "positive: Number of its collectives.",
                "caused_ns": "count: How long the others wait for it, per step.",
            }
        ),
        "findings": "count: Number of findings, including unlisted ones.",
        "asked": "positive: Number of rules that were asked.",
        "perhaps?": "positive: Number of findings that are not listed as their rules are often "
        "wrong.",
        "wins?": "text: How wins are to be read.",
        "hidden?": "texts: Rules whose findings are not listed, as GPUs would wait for input, or "
        "for launches, by as much longer.",
        "against?": "text: Name of the base.",
        "base_steps?": "count: Number of its usual steps.",
        "left_out?": {
            "description": "With a base: by run, the numbers of steps that are outliers.",
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "integer"}},
        },
        **keys("warnings?"),
    },
    rows={
        "rule": "text: Name of the rule.",
        "finding": "text: The problem in one sentence, with numbers.",
        "win_ns": "amount or null: By how much a mean usual step would be shorter; null where it "
        "is not known.",
        "win_low_ns": "amount or null: Lower bound.",
        "win_high_ns": "amount or null: Upper bound.",
        "share": "amount or null: What is won of a step; where no steps are known, of the "
        "recording.",
        "confidence": "one of measured, likely, hint, perhaps: How certain the finding is; perhaps "
        "of rules that are often wrong.",
        "evidence": "texts: The numbers behind it.",
        "advice": "text: What to do, and what would have to be true.",
        "whatif": "text or null: What to ask `tracekit whatif` for, where a replay can price it "
        "(unless its range is too wide); with --price also how long a step then is.",
        "win_unknown": "text or null: Why win_ns is null; else null.",
        "fingerprint": "text: Names the finding, in any run.",
        "state?": "one of new, grown, uncovered, shrunk, unchanged, gone: Its change since the "
        "base.",
        "base_win_ns?": "amount or null: win_ns in the base.",
        "base_share?": "amount or null: share in the base.",
    },
)


def judged(
    found: "Answer",
    *,
    fail_on: Annotated[
        str | None,
        Option(
            "Exit with 1 if there is a finding (any), one of some rules (their names), or one "
            "whose win is so large a share of a step (10%); 3 if that is unknown.",
            "WHAT",
        ),
    ] = None,
) -> int:
    """Return the exit code of `diagnose`: 1 if a finding meets `fail_on`, otherwise 0.

    If `fail_on` is a share of a step, a run with unknown steps gives 3 in place of 1.
    """
    if fail_on is None:
        return 0
    every = found.tables["findings"]
    if "state" in every.columns:
        every = every.filter(every["state"].is_in(diagnosis.WORSE))
    names = {each.strip() for each in fail_on.split(",")}
    if names <= set(diagnosis.RULES):
        return int(any(rule in names for rule in every["rule"]))
    every = every.filter(every["confidence"] != "perhaps")
    if fail_on == "any":
        return int(every.height > 0)
    if not fail_on.strip().removesuffix("%").replace(".", "", 1).isdigit():
        raise UsageError(
            f"{fail_on!r} is nothing to fail on",
            f"write any, a share such as 10%, or rules out of {', '.join(diagnosis.RULES)}",
        )
    least = parse_percent(fail_on) / 100
    large = [share for share in every["share"].drop_nulls() if share >= least]
    return (1 if found.meta["steps"] else 3) if large else 0


@question(
    "tracekit diagnose",
    "tracekit diagnose mnist --all",
    "tracekit diagnose after --against before",
    "tracekit diagnose --fail-on 10% --format junit --output findings.xml",
    "tracekit diagnose unet --dask tcp://head:8786",
    writes=_JSON,
    opened=("rules", "iteration", "only_ranks", "processes", "dask", "on_missing"),
    judge=judged,
    formats=("sarif", "junit"),
)
def diagnose(
    run: "OpenedRun",
    *,
    top: Annotated[int | None, Option("List N findings.", "N", least=1)] = 5,
    everything: Annotated[bool, Option("List all findings.", flag="--all")] = False,
    only: Annotated[
        Sequence[str] | None,
        Option(
            "Apply only these rules, joined by commas.", "NAMES", unit="keys",
            typed=list[str] | None,
        ),
    ] = None,
    price: Annotated[
        bool, Option("Replay steps with each finding fixed, and say how long a step then is.")
    ] = False,
    against: Annotated[
        Traced | None,
        Option(
            "Say what is new, grown, shrunk, ... or gone since this run; --fail-on then "
            "looks at what is new or grown.",
            "BASE",
            unit="run",
        ),
    ] = None,
    topology: Topology = None,
    **_: Unpack[ChosenOrder],
) -> "Answer":  # fmt: skip
    """List avoidable time, largest first: what it costs, and what would help.

    Findings come with their evidence, the largest first. docs/diagnose.md describes each rule and
    its values. SARIF and JUnit contain all findings.
    """
    top = None if everything else top
    traffic = run.traffic(topology=topology)
    if against is None:
        found = diagnosis.diagnose(run.trace, top=top, rules=only, traffic=traffic)
    else:
        base = cast("OpenedRun", against)
        found = diagnosed_against([run], [base], top=top, only=only, topology=topology)
    if price:
        run.require_memory("whatif")
    replays = _replays(run, found.rows["rule"], traffic, price=price)
    return _with_commands(found, run.name, replays)


def _replays(
    run: "OpenedRun", rules: Iterable[str], traffic: "Traffic", *, price: bool
) -> dict[str, str]:
    """Return for each rule of `diagnose` the `whatif` command that simulates its fix: rule -> text.

    With `price` the steps are replayed with the fix, and the text has the resulting step time.
    """
    from tracekit.analysis.dependencies import CHANGES, price_of, require_one_clock

    try:
        require_one_clock(run.trace)
    except MissingDataError:
        return {}
    command = f"tracekit whatif {shlex.quote(run.name)}"
    named = {rule: f"`{command} {CHANGES[rule][0]}`" for rule in rules if rule in CHANGES}
    if not price:
        return named
    priced = {rule: price_of(rule, run.trace, traffic) for rule in named}
    return {
        rule: f"{named[rule]}: {found.text}" for rule, found in priced.items() if found is not None
    }


def _with_commands(answer: "Answer", run: str, replays: Mapping[str, str]) -> "Answer":
    """Name the run in the commands of advice, and add the text of `replays` for each rule.

    The text says how to simulate the finding's fix.
    """
    import polars as pl

    text = pl.col("rule").replace_strict(replays, default=None, return_dtype=pl.String)
    of_run = f"`tracekit ${{1}} {shlex.quote(run).replace('$', '$$')}"
    advised = pl.col("advice").str.replace_all("`tracekit ([a-z-]+)", of_run)
    more = {"advice": advised, "whatif": text}
    named = {name: table.with_columns(**more) for name, table in answer.tables.items()}
    # Only a replay shows how wide its range is.
    replay = (
        pl.when(text.str.ends_with("`"))
        .then(pl.format("By replay, if its range allows it: {}.", text))
        .otherwise(pl.format("By replay: {}.", text))
    )
    advice = pl.concat_str(advised, replay, separator=" ", ignore_nulls=True)
    readable = answer.readable_rows.with_columns(advice=advice)
    return replace(answer, rows=answer.rows.with_columns(**more), tables=named, readable=readable)


def diagnosed_against(
    found: Sequence["OpenedRun"],
    base: Sequence["OpenedRun"],
    *,
    top: int | None = None,
    only: Sequence[str] | None = None,
    topology: StrPath | None = None,
) -> "Answer":
    """Diagnose the runs `found` and `base`; return which findings are new, grown or gone.

    `only` are the rules to apply, `top` is the number of findings to list; None: all. Steps of
    outlying duration are left out of all runs.
    """
    for run in (*base, *found):
        run.require_memory("diagnose")

    def of_side(side: Sequence["OpenedRun"], **options: float) -> list["Answer"]:
        return [
            diagnosis.diagnose(run.trace, top=None, rules=only, without=outlier_steps(run),
                     traffic=run.traffic(topology=topology), **options)
            for run in side
        ]  # fmt: skip

    before = of_side(base, worth=diagnosis.NOTICED)
    answer = diagnosis.against(of_side(found), before, top=top)
    left_out = {run.name: own for run in (*base, *found) if (own := outlier_steps(run))}
    least = min(each.meta["steps"] for each in before)
    return answer.saying(against=base[0].name, base_steps=least, left_out=left_out)


def outlier_steps(run: "OpenedRun") -> list[int]:
    """Return the numbers of steps of outlying duration, leaving out the first, cold steps."""
    found: list[int] = (
        comparison.steps_of_run(run.trace, run.name, skip="auto")
        .filter("is_outlier")["iteration"]
        .to_list()
    )
    return found
