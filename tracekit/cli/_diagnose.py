"""`tracekit diagnose`: what takes time that a run need not take."""

from typing import TYPE_CHECKING, Annotated

from tracekit.analysis import diagnosis
from tracekit.cli._command import Judged, command
from tracekit.cli._options import (
    LATEST,
    IterationOption,
    OnlyRanksOption,
    RulesOption,
    RunArgument,
    open_run,
    split_keys,
)
from tracekit.cli._output import EVERYWHERE, Format
from tracekit.errors import UsageError
from tracekit.support.columns import keys
from tracekit.support.quantities import parse_percent
from tracekit.support.questions import Folder, Option, Topology
from tracekit.support.schemas import Json

if TYPE_CHECKING:
    from tracekit.model import Answer


_JSON = Json(
    "diagnose",
    meta={
        "step_ns": "count or null: Mean length of a usual step on a GPU; null where no steps are "
        "known.",
        "steps": "count: Number of usual steps.",
        "devices": "positive: Number of GPUs.",
        "last_step_ns?": "count: Mean length of the last step; left out, as it lacks what ends the "
        "others.",
        "findings": "count: Number of findings, including unlisted ones.",
        "asked": "positive: Number of rules that were asked.",
        "perhaps?": "positive: Number of findings that are not listed as their rules are often "
        "wrong.",
        "wins?": "text: How wins are to be read.",
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
        "sure": "one of measured, likely, hint, perhaps: How sure the finding is; perhaps of rules "
        "that are often wrong.",
        "evidence": "texts: The numbers that say so.",
        "advice": "text: What to do, and what would have to be true.",
        "whatif": "text or null: What to ask `tracekit whatif` for, where a replay can price it; "
        "with --price also how long a step then is.",
        "win_unknown": "text or null: Why win_ns is null; else null.",
        "fingerprint": "text: Names the finding, in any run.",
        "state?": "one of new, grown, shrunk, unchanged, gone: Its change since the base.",
        "base_win_ns?": "amount or null: win_ns in the base.",
        "base_share?": "amount or null: share in the base.",
    },
)


@command(
    "tracekit diagnose",
    "tracekit diagnose mnist --all",
    "tracekit diagnose after --against before",
    "tracekit diagnose --fail-on 10% --format junit --output findings.xml",
    formats=(*EVERYWHERE, Format.SARIF, Format.JUNIT),
    writes=[_JSON],
)
def diagnose(
    run: RunArgument = LATEST,
    *,
    top: Annotated[int, Option("List N findings.", "N", least=1)] = 5,
    everything: Annotated[bool, Option("List all findings.", flag="--all")] = False,
    only: Annotated[
        list[str] | None,
        Option("Apply only these rules, joined by commas.", "NAMES"),
    ] = None,
    fail_on: Annotated[
        str | None,
        Option(
            "Exit with 1 if there is a finding (any), one of some rules (their names), or one "
            "that wins so much of a step (10%); 3 if that cannot be told.",
            "WHAT",
        ),
    ] = None,
    price: Annotated[
        bool,
        Option("Replay steps with each finding fixed, and say how long a step then is."),
    ] = False,
    against: Annotated[
        str | None,
        Option(
            "Say what is new, grown, shrunk, unchanged or gone since this run; --fail-on then "
            "looks at what is new or grown.",
            "BASE",
            unit="run",
        ),
    ] = None,
    topology: Topology = None,
    rules: RulesOption = None,
    iteration: IterationOption = None,
    only_ranks: OnlyRanksOption = None,
    store: Folder = None,
) -> Judged:
    """List avoidable time, largest first: what it costs, and what would help.

    Findings come with their evidence, the largest first. docs/diagnose.md says what each rule looks
    at, and what its numbers are. SARIF and JUnit hold all findings.
    """
    opened = open_run(run, store, rules, iteration, only_ranks=only_ranks)
    found = opened.diagnose.answer(
        top=None if everything else top,
        only=None if only is None else split_keys(only),
        price=price,
        against=None if against is None else open_run(against, store, rules, iteration),
        topology=topology,
    )
    return Judged(found, 0 if fail_on is None else judged(found, fail_on))


def judged(found: "Answer", fail_on: str) -> int:
    """Return the exit code: 1 if any finding is one to fail on, otherwise 0.

    `fail_on` is rules, `any`, or a least share. For a finding of that share the code is 3 if no
    steps are known.
    """
    every = found.tables["findings"]
    if "state" in every.columns:
        every = every.filter(every["state"].is_in(diagnosis.WORSE))
    names = set(split_keys([fail_on]))
    if names <= set(diagnosis.RULES):
        return int(any(rule in names for rule in every["rule"]))
    every = every.filter(every["sure"] != "perhaps")
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
