"""Features that a run has enough data for, the kinds of data it has, and SQL over its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.analysis.facts import DEGREES, REQUIREMENTS, Evidence, Facts
from tracekit.errors import UsageError
from tracekit.model import DERIVED, Trace
from tracekit.support.wording import count, first_line

_COLUMNS = ("command", "feature", "available", "found", "record_with")
_UNDERSTOOD = ("launching calls", "physical GPUs")
"""Names of `REQUIREMENTS` that rest on several kinds of data, and that no command shows."""
_BESIDE_KERNELS = ("copies", "memsets")
"""Kinds of data that every profiler records with kernels: without any, the program made none."""


@dataclass(frozen=True)
class Capability:
    """Something that a command can find out about a run, and the data that this requires."""

    command: str
    """Name of the command."""
    feature: str
    """What it finds out, in words."""
    requirements: tuple[str, ...]
    """The required data, as names of `REQUIREMENTS`."""


CAPABILITIES = (
    Capability("breakdown", "time by kernel, kind, device and stream", ("ops",)),
    Capability("breakdown", "time by stage", ("stages",)),
    Capability("breakdown", "time by range", ("ranges", "launching calls")),
    Capability("breakdown", "time by iteration", ("iterations",)),
    Capability("breakdown", "time by rank", ("ranks",)),
    Capability("breakdown", "time by node", ("nodes",)),
    Capability(
        "diagnose", "avoidable time, and what to do", ("ops", "launching calls", "iterations")
    ),
    Capability("idle", "why nothing runs", ("ops", "launching calls")),
    Capability("stragglers", "which rank is late, and what it costs", ("who waits",)),
    Capability("critical-path", "what steps wait for", ("ops", "launching calls", "iterations")),
    Capability("whatif", "steps with something changed", ("ops", "launching calls", "iterations")),
    Capability("flops, roofline", "what operators compute", ("operator sizes",)),
    Capability("flops", "the share of the peak (MFU)", ("operator sizes", "iterations")),
    Capability("links", "bytes of copies between GPUs", ("peer copies",)),
    Capability("links", "bytes of NCCL", ("message sizes",)),
    Capability("links", "which links those crossed", ("machine",)),
    Capability("links", "bytes against counters", ("link counters",)),
    Capability("collectives", "time by operation", ("collectives",)),
    Capability("collectives", "sizes and bandwidths", ("message sizes",)),
    Capability("collectives", "waiting and stragglers", ("participants",)),
    Capability("compare", "steps, with intervals", ("iterations",)),
    Capability("compare", "stages", ("stages",)),
    Capability("compare", "kernels and kinds", ("ops",)),
    Capability("compare", "API calls", ("API calls",)),
    Capability("compare", "memory", ("memory events",)),
    Capability("study, scaling", "step times", ("iterations",)),
    Capability("overhead", "step times of two methods", ("iterations",)),
    Capability("overhead", "API calls", ("API calls",)),
    Capability("overhead", "time of the profiler itself", ("profiler",)),
    Capability("project", "times, input and exchanged bytes of a step", ("ops", "iterations")),
    Capability("stalls", "waiting for input, utilisation", ("ops",)),
    Capability("bubbles", "bubbles of a pipeline", ("pipeline", "stages", "iterations")),
    Capability("memory", "memory before and in training", ("memory",)),
    Capability("latency", "collectives by size", ("message sizes",)),
    Capability("latency", "what MPI asks of the GPU", ("MPI calls", "API calls")),
)
"""The questions of commands, each with the data that it requires."""


def features(trace: Trace) -> pl.DataFrame:
    """Return what commands can find out about a run, and how to record the data for the rest.

    Returns
    -------
    Rows by command, then rows by kind of data: ``command`` (null for a kind of data), ``feature``
    (what the command can find out, or the kind of data), ``available`` (``yes``; ``partly`` if some
    data is missing, or missing in some trace files; ``none`` if it was recorded and nothing of
    the kind ran; ``no``), ``found`` (in words) and ``record_with`` (how to record the missing data
    with the profiler in use; null if nothing is missing).
    """
    facts = Facts(trace)
    evidence = {name: each.measure(facts) for name, each in REQUIREMENTS.items()}
    rows = [_row(each, evidence, facts.recorders) for each in CAPABILITIES]
    rows += [_row(Capability("", name, (name,)), evidence, facts.recorders) for name in _UNDERSTOOD]
    table = pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")
    return pl.concat([table, _recorded(trace)])


def _row(
    capability: Capability, evidence: dict[str, Evidence], recorders: list[str]
) -> tuple[str | None, ...]:
    found = {name: evidence[name] for name in capability.requirements}
    available = min((each.available for each in found.values()), key=DEGREES.index)
    missing = [name for name, each in found.items() if each.available in ("no", "partly")]
    ways = dict.fromkeys(REQUIREMENTS[name].record_with(recorders) for name in missing)
    words = ", ".join(each.found for each in found.values())
    return capability.command or None, capability.feature, available, words, "; ".join(ways) or None


def _recorded(trace: Trace) -> pl.DataFrame:
    """Return a row per kind of data: whether the run's trace files have it, and how much."""
    has_kernels = ((pl.col("feature") == "kernels") & pl.col("present")).any().over("report")
    has_all = pl.col("present") | (pl.col("feature").is_in(_BESIDE_KERNELS) & has_kernels)
    contents = (
        trace.read("contents")
        .with_columns(recorded=has_all)
        .group_by("feature", maintain_order=True)
        .agg(
            pl.col("present").any(),
            pl.col("recorded").all().alias("everywhere"),
            pl.col("rows").sum(),
            pl.col("rows").null_count().alias("uncounted"),
            pl.col("source_table", "tells").first(),
            # Only of reports that lack it: those of other recorders need nothing.
            pl.col("record_with").filter(~pl.col("recorded")).unique(maintain_order=True),
        )
    )
    number = pl.lit(pl.Series([count(rows, "row") for rows in contents["rows"]], dtype=pl.String))
    found = (
        pl.when(~pl.col("present")).then(pl.format("no {}", "source_table"))
        .when(pl.col("uncounted") > 0).then(pl.format("{}: {}", "source_table", "tells"))
        .otherwise(pl.format("{}: {}", number, "tells"))
    )  # fmt: skip
    available = (
        pl.when("everywhere", "present").then(pl.lit("yes"))
        .when("everywhere").then(pl.lit("none"))
        .when("present").then(pl.lit("partly"))
        .otherwise(pl.lit("no"))
    )  # fmt: skip
    return contents.select(
        "feature",
        command=pl.lit(None, pl.String),
        available=available,
        found=found,
        record_with=pl.when(~pl.col("everywhere")).then(pl.col("record_with").list.join("; ")),
    ).select(_COLUMNS)


# -- SQL over a run's tables -------------------------------------------------------------------


_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_OF_CATEGORIES = re.compile(r"got:? `?(?:cat|enum)")
_READING = re.compile(r"\s*\(*\s*(select|with|show|explain|describe)\b", re.IGNORECASE)
# Functions of the SQL engine that open files; a query is for this run's tables alone. Their names
# may be quoted, and only space and comments come before the parenthesis. Text that looks like such
# a call is refused too: what is a literal or a comment, the engine decides.
_OPENS_FILES = re.compile(r"\b(read|scan)_\w+[\"'`]?\s*(\(|--|/\*)", re.IGNORECASE)


Make = Callable[[], pl.DataFrame]


def query(trace: Trace, sql: str, derived: Mapping[str, Make] | None = None) -> pl.DataFrame:
    """Run one SQL query, which only reads, over the tables of a run.

    Parameters
    ----------
    trace
        The run; its tables are ``ops``, ``calls``, ``ranges`` and so on.
    sql
        A SELECT (or WITH, SHOW TABLES, EXPLAIN) in the dialect of polars.
    derived
        Name of a derived table -> function that computes it; called if `sql` names the table.

    Raises
    ------
    UsageError
        If the statement is of another kind, or invalid.
    """
    bare = _COMMENT.sub(" ", sql)
    if not _READING.match(bare):
        raise UsageError("a query only reads", "begin it with SELECT or WITH")
    if _OPENS_FILES.search(sql):
        raise UsageError(
            "a query reads the tables of its run and no files", "SHOW TABLES lists them"
        )
    frames = dict(trace.tables)
    for name, make in (derived or {}).items():
        named = re.search(rf"\b{name}\b", sql, re.IGNORECASE)
        frames[name] = (make() if named else DERIVED[name].empty()).lazy()
    try:
        with pl.SQLContext(frames=frames) as context:
            return context.execute(sql).collect()
    except pl.exceptions.PolarsError as error:
        # What follows the first paragraph is the engine's plan, which names files of the store.
        reason = str(error).strip().split("\n\n")[0]
        hint = f"the tables are {', '.join(frames)}"
        if _OF_CATEGORIES.search(reason):
            hint = "names, stages and kinds are categories: CAST(name AS VARCHAR) LIKE '%gemm%'"
        raise UsageError(f"the query failed ({reason})", hint) from error


@first_line("info")
def _first_line(rows: pl.DataFrame, _: Mapping[str, Any]) -> str | None:
    if "available" not in rows.columns:
        return None
    commands = rows.drop_nulls("command") if "command" in rows.columns else rows
    answered = commands.filter(pl.col("available") == "yes").height
    return f"{answered} of {commands.height} features have all that they need"
