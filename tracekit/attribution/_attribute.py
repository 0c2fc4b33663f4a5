"""Find the launching call, range, stage and iteration of each op of a recording, in that order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, Context, Found, StepRows, StepSums
from tracekit.attribution._chunks import Waiting
from tracekit.attribution._clock import Jumps, early, late, steady_offset, waits
from tracekit.attribution._context import Follower, autograd_threads, backward_windows
from tracekit.attribution._exchanges import Compressed, Doubtful, Split, roles_by_name
from tracekit.attribution._findings import findings, stored_findings
from tracekit.attribution._iterations import (
    DeviceSteps,
    Opening,
    Unmarked,
    Updated,
    cuts,
    find_iterations,
    training_threads,
    with_work,
)
from tracekit.attribution._launch_loops import NEVER
from tracekit.attribution._launches import (
    Captured,
    Launches,
    as_captured,
    chunks_of,
    first_numbers,
    link_launches,
)
from tracekit.attribution._names import classify_kernels, classify_threads
from tracekit.attribution._nesting import Nesting, look_at_ranges
from tracekit.attribution._op_loops import copy_contexts, count_in_steps
from tracekit.attribution._processes import Known, Verdicts, judge_all
from tracekit.attribution._range_labels import find_labels, number_in
from tracekit.attribution._rules import Rules, Unmatched, without_unmatched
from tracekit.attribution._stages import Launch, Stages
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.attribution._trainers import Spans, Teams, find_teams, steps_of_teams
from tracekit.attribution._verdict import count_names
from tracekit.model import GRAPH_NODES, OPS, RANGES, STAGE, WORK_MISSING, Recording, Stream, Trace
from tracekit.support.ahead import ahead
from tracekit.support.compiled import compiled, given
from tracekit.support.progress import Progress
from tracekit.support.spool import Workspace
from tracekit.support.wording import count

Write = Callable[[str, Callable[[], pl.DataFrame]], None]
"""Callback for the name of a canonical table and a function that makes its next rows; it calls each
function once, in order."""

_KEPT = 4
"""Number of chunks of calls kept in memory: ops follow their calls closely."""
_STEPS = ("launches and ranges", "iterations", "calls", "verdicts", "stages")


def attribute(trace: Trace, rules: Rules, progress: Progress = lambda *_: None) -> Trace:
    """Return the trace with launching calls, innermost ranges, stages and iterations of ops.

    Only the recorded columns are used: results of an earlier attribution are replaced.

    Parameters
    ----------
    trace
        A trace as it was read from a file, or one that was attributed before.
    rules
        Rules that give names of ranges, threads and kernels a meaning.
    progress
        Callback that gets the name of each step when it begins.
    """
    written: dict[str, list[pl.DataFrame]] = {}

    def write(table: str, make: Callable[[], pl.DataFrame]) -> None:
        written.setdefault(table, []).append(make())

    warnings = attribute_recording(Recording.of(trace), rules, Workspace(), write, progress)
    trace = replace(trace, warnings=without_unmatched(trace.warnings))
    return trace.with_tables({name: pl.concat(parts) for name, parts in written.items()}, warnings)


def attribute_recording(
    recording: Recording, rules: Rules, workspace: Workspace, write: Write, progress: Progress
) -> tuple[str, ...]:
    """Link a recording's ops to calls, ranges, stages and steps, by chunks; return warnings.

    The recording's tables, with columns for these links, and the tables derived from them (such as
    ``iterations``) are passed to `write`, chunk by chunk.

    Returns
    -------
    Warnings, one sentence each: for each failed self-check (several calls of a process with one
    correlation id; ops that start before their launch), for each doubt about stages (`findings`),
    and one for all entries of the user's rules file that matched nothing.
    """
    ops, calls, ranges = (recording.streams[name] for name in ("ops", "calls", "ranges"))
    threads = classify_threads(recording.tables["threads"], rules)
    steps = iter(range(len(_STEPS)))

    def step() -> None:
        number = next(steps)
        progress(f"attribute {_STEPS[number]}", number, len(_STEPS))

    with ThreadPoolExecutor(2, "beside") as others:
        # All that is written of calls was recorded, so writing them need not wait.
        writing = others.submit(_write_calls, calls, write)
        counted = count_names(ops)
        roles = _roles(threads, recording.tables["processes"], counted, calls, ranges)
        step()
        linking = others.submit(
            link_launches, ops, calls, roles.threads, roles.processes, workspace
        )
        nesting = look_at_ranges(ranges, roles.threads, rules, workspace, _last_start(calls))
        launches = linking.result()
        offset = steady_offset(ops, calls, launches, recording.parts("syncs"))
        ops = ops.later(offset.by) if offset.by else ops
        captured = Captured(recording.tables.get("graph_nodes", GRAPH_NODES.empty()), calls)
        captured.mark(launches.launching)
        step()
        found = _find_steps(
            nesting, launches, roles, rules, lambda: _arrivals(ops, calls, launches, counted, rules)
        )
        step()
        writing.result()
    contexts, autograd = _follow(ranges, calls, launches, nesting, found, roles, workspace, write)
    step()
    known = Known(
        nesting, found.teams, found.windows, autograd, roles.table, launches.by_thread,
        roles.processes_of, found.iterations, counted, roles_by_name(counted, rules),
    )  # fmt: skip
    placed = _Placed(launches, contexts, captured)
    verdicts = judge_all(ops, placed, known, rules, workspace, has_unlaunched=launches.alone > 0)
    step()
    unmatched = Unmatched(rules)
    unmatched.see_names(nesting.names.table, threads)
    passed = _attribute_ops(
        ops,
        placed,
        found,
        verdicts,
        Stages(verdicts.evidence, rules, unmatched),
        Jumps(recording.parts("syncs")),
        write,
    )
    iterations = _iterations(found, verdicts, passed, roles)
    verdict_rows = verdicts.table(cuts(iterations, passed.torn), roles.reports)
    opinions = passed.opinions.join(
        verdict_rows[["process", "report"]], on="process", how="left", maintain_order="left"
    )
    assumptions = verdicts.assumptions(roles.reports)
    written = {
        "iterations": iterations, "verdicts": verdict_rows, "assumptions": assumptions,
        "opinions": opinions,
    }  # fmt: skip
    for table, frame in written.items():
        write(table, frame.clone)
    return (
        *_lasting(recording),
        *offset.warning(),
        *_checks(launches, passed.early, ops.height),
        *passed.doubts,
        *late(passed.waits, offset.slack),
        *findings(verdict_rows, opinions, roles.processes_of, iterations),
        *unmatched.warnings(),
        *nesting.names.doubts,
    )


def _last_start(calls: Stream) -> int:
    """Return the start of the last call, ns; 0 if there is none."""
    return max(
        (int(calls.read(n, "start")["start"][-1]) for n in range(len(calls))[-1:]), default=0
    )


def _write_calls(calls: Stream, write: Write) -> None:
    for chunk in range(len(calls)):
        write("calls", partial(calls.read, chunk))


@dataclass(frozen=True)
class _Roles:
    """Threads and processes of a recording, and what the names of threads imply.

    `table` lists the threads, with the stage that each name implies and whether it names an
    autograd thread; `processes_of` lists the processes. `threads` and `processes` are numbers: one
    more than the largest thread id, and than the largest process id.
    """

    table: pl.DataFrame
    processes_of: pl.DataFrame
    threads: int
    processes: int

    @cached_property
    def reports(self) -> dict[int, int]:
        """Id of a process -> number of the report (trace file) that recorded it."""
        return dict(self.processes_of.select("process", "report").iter_rows())


def _roles(
    threads: pl.DataFrame, listed: pl.DataFrame, counted: pl.DataFrame, *streams: Stream
) -> _Roles:
    table = threads.join(listed[["process", "pid"]], on="process", how="left").sort("thread")
    columns = ("thread", "process")
    seen = [table.select(columns)]
    if table.is_empty():  # a trace need not say who takes part
        seen += [stream.read(n, *columns) for stream in streams for n in range(len(stream))]
    # Work may be of a process of which no thread was seen.
    seen.append(counted.select(pl.col("process").max()))
    most = pl.concat(seen, how="diagonal").select(pl.col(columns).max().fill_null(-1) + 1)
    return _Roles(table, listed, *most.row(0))


@dataclass(frozen=True)
class _Steps:
    """Training threads, iterations, and backward windows (when backward passes may run).

    `of_teams` lists the steps of each training thread, each with its row in `iterations`.
    """

    teams: Teams
    iterations: pl.DataFrame
    of_teams: pl.DataFrame
    windows: pl.DataFrame


def _arrivals(
    ops: Stream, calls: Stream, launches: Launches, counted: pl.DataFrame, rules: Rules
) -> pl.DataFrame:
    """Return ``thread, launch`` (ns) of ops that may bring input: copies from the host, messages.

    Copies that are too small for a batch, or whose size is unknown, are left out; `counted` has the
    names of all kernels.
    """
    names = classify_kernels(counted.unique("name"), rules)
    messages = names.filter(pl.col("collective") == "send_recv")["name"]
    is_large = (pl.col("kind") == "h2d") & (pl.col("bytes") >= THRESHOLDS.relayed_bytes)
    brings = (is_large | pl.col("name").is_in(messages.implode())).fill_null(value=False)
    found = [np.empty(0, np.int64)]
    for number in range(len(ops)):
        chosen = ops.read(number, "kind", "bytes", "name").select(brings).to_series()
        found.append(launches.calls.read(number, "call")[0][chosen.to_numpy()])
    launching, first = np.concatenate(found), first_numbers(calls)
    parts = [pl.DataFrame(schema={"thread": pl.Int32, "launch": pl.Int64})]
    for chunk in chunks_of(launching, first):
        inside = (launching >= first[chunk]) & (launching < first[chunk + 1])
        rows = calls.read(chunk, "thread", "start")[launching[inside] - first[chunk]]
        parts.append(rows.rename({"start": "launch"}))
    return pl.concat(parts)


def _find_steps(
    nesting: Nesting,
    launches: Launches,
    roles: _Roles,
    rules: Rules,
    arrivals: Callable[[], pl.DataFrame],
) -> _Steps:
    by_thread = roles.table.select("process", "thread").join(
        pl.DataFrame({"thread": np.arange(roles.threads, dtype=np.int32)}).with_columns(
            launches=launches.by_thread
        ),
        on="thread",
    )
    training = training_threads(nesting.marks, by_thread.filter(pl.col("launches") > 0))
    teams = find_teams(
        training, nesting.marks, roles.table, launches.devices, first=roles.processes
    )
    skeleton, apart = teams.apart(nesting.skeleton), teams.apart(teams.trainers)
    steps = find_iterations(skeleton, apart, rules, arrivals)
    windows = backward_windows(skeleton, apart, steps)
    return _Steps(teams, *steps_of_teams(steps, teams), windows)


@dataclass(frozen=True)
class _Contexts:
    """Thread, times, range, step and evidence for a stage of each API call, read by chunks."""

    calls: Stream
    found: Waiting

    @cached_property
    def first(self) -> Array:
        """The number of the first call of each chunk; a last element is the number of all calls."""
        return first_numbers(self.calls)

    @cached_property
    def of(self) -> Callable[[int], Context]:
        """Return a function: number of a chunk -> `Context` of its calls; results are cached."""
        return lru_cache(_KEPT)(self._read)

    def _read(self, chunk: int) -> Context:
        calls = self.calls.read(chunk, *_OF_LAUNCH)
        return Context(*map(given, calls), *self.found.read(chunk, *Found._fields))


def _follow(
    ranges: Stream,
    calls: Stream,
    launches: Launches,
    nesting: Nesting,
    found: _Steps,
    roles: _Roles,
    workspace: Workspace,
    write: Write,
) -> tuple[_Contexts, pl.Series]:
    """Merge ranges and calls by time: write ranges with their paths, find the context of each call.

    Returns the contexts (per call the innermost range, the step, and evidence for the stage of what
    it launches), and the threads that run backward passes.
    """
    teams = found.teams
    number = pl.coalesce("number", number_in(pl.col("name")))
    steps = Spans(found.of_teams.select("process", "start", "end", number=number), teams.count)
    windows = Spans(
        found.windows.sort("process", "start", maintain_order=True).select(
            "process", "start", "end", number="unit"
        ),
        teams.count,
    )
    follower = Follower(
        ranges, nesting, calls, launches.launching, steps, windows, teams,
        _may_serve(roles, teams.trainers), find_labels(ranges, nesting, steps, teams),
        given(found.of_teams["row"], np.int32, null=-1),
    )  # fmt: skip
    standing = Waiting(workspace)
    for chunk, found_of in follower.chunks():
        if isinstance(found_of, Context):
            standing.append({name: getattr(found_of, name) for name in Found._fields})
        else:
            write("ranges", partial(_ranges, ranges, nesting, chunk, found_of))
    write("paths", follower.paths)
    counts = follower.serving._asdict() | {"thread": np.arange(roles.threads, dtype=np.int32)}
    served = pl.DataFrame({name: counts[name] for name in ("thread", "during", "inside", "served")})
    recorded = windows.rows.filter(follower.recorded())
    autograd = autograd_threads(
        served, recorded, teams.apart(roles.table), nesting.marked, teams.trainers
    )
    return _Contexts(calls, standing), autograd


def _may_serve(roles: _Roles, training: pl.DataFrame) -> Array:
    """Mask threads that may run backward passes: not training, and no name that implies a stage."""
    may = np.ones(roles.threads, np.bool_)
    busy = roles.table.filter(pl.col("stage").is_not_null())["thread"]
    may[pl.concat([busy, training["thread"]]).to_numpy()] = False
    return may


def _ranges(ranges: Stream, nesting: Nesting, chunk: int, paths: Array) -> pl.DataFrame:
    """Return a chunk of the table of ranges, with domain, stage, parent, depth and path."""
    names, (ids, *around) = nesting.names.table, nesting.places.read(chunk, *_AROUND)
    parent, depth = (_or_null(pl.Series(numbers)) for numbers in around)
    name_id = pl.Series(ids)
    found = {
        "domain": names["domain"][name_id], "stage": names["stage"].cast(STAGE)[name_id],
        "parent": parent.cast(pl.Int64), "depth": depth, "path": pl.Series(paths),
    }  # fmt: skip
    read = ranges.coded(chunk, *(name for name in RANGES.schema if name not in found))
    return pl.DataFrame([found[n].alias(n) if n in found else read[n] for n in RANGES.schema])


_AROUND = ("name_id", "parent", "depth")


def _or_null(numbers: pl.Series) -> pl.Series:
    """Return integers with null in place of -1, which means none."""
    return numbers.set(numbers < 0, None)


@dataclass(frozen=True)
class _Placed:
    """Looks up by chunks the call that launched each op: its range, step, evidence for a stage."""

    launches: Launches
    contexts: _Contexts
    captured: Captured

    def calls(self, number: int) -> Array:
        """Return the index of the launching call of each op in chunk `number`, -1 if unknown."""
        [calls] = self.launches.calls.read(number, "call")
        return calls

    def __call__(self, number: int, rows: Array | None = None) -> dict[str, Array]:
        """Return range, step and evidence for a stage of the calls that launched chunk `number`.

        With `rows`, only for these ops of the chunk.
        """
        calls = self.calls(number)
        return self.launch(calls if rows is None else calls[rows])

    def launch(self, calls: Array) -> dict[str, Array]:
        """Return innermost range, step and evidence for a stage of `calls`, given by index."""
        return _launch(calls, self.contexts)._asdict()

    def why(self, ops: pl.DataFrame, launch: dict[str, Array]) -> tuple[Array, Array, Array]:
        """Return per op the range, evidence bits and thread from which its stage is derived.

        They are those of its launching call; for a node of a CUDA graph those of the call from
        which the node was captured (see `as_captured`).
        """
        calls = self.captured.of(ops)
        if calls is None:
            return launch["range"], launch["evidence"], launch["thread"]
        return as_captured(launch, self.launch(calls))


@dataclass(frozen=True)
class _Passed:
    """Sums and warnings collected while ops were written.

    `early`: for each op that starts before its launching call, by how much, ns. `waits`: shortest
    delay from call to start of kernels launched on idle GPUs. `sums`: number of ops and last launch
    times in each step that ranges mark. `torn`: processes whose recording begins within a step.
    `recorded`: processes with GPU work. `opinions`: GPU time by stage according to each source of
    evidence. `doubts`: warnings on work outside of steps, on collectives with unknown operation,
    and on copies of which it is doubtful what they carry.
    """

    early: Array
    waits: list[pl.DataFrame]
    sums: StepSums
    torn: pl.Series
    recorded: pl.Series
    opinions: pl.DataFrame
    doubts: tuple[str, ...]


def _attribute_ops(
    ops: Stream,
    placed: _Placed,
    found: _Steps,
    verdicts: Verdicts,
    stages: Stages,
    jumps: Jumps,
    write: Write,
) -> _Passed:
    """Write ops with launching call, stage and iteration; return the sums and warnings found."""

    def attributed(number: int) -> _Attributed:
        made = _attributed(ops, number, placed, found.iterations, verdicts, stages)
        placed.launches.calls.drop(number)
        return made

    leads: list[Array] = [np.empty(0, np.int64)]
    waited: list[pl.DataFrame] = []
    sums, opening = _sums(found.iterations), Opening(found.iterations)
    doubts = (
        Unmarked(found.iterations), Updated(found.iterations), DeviceSteps(),
        Doubtful(), Compressed(), Split(), jumps,
    )  # fmt: skip
    for each in ahead(attributed, range(len(ops)), waiting=1):
        write("ops", each.ops.clone)
        opening.add(each.ops)
        for doubt in doubts:
            doubt.add(each.ops)
        leads.append(each.early)
        waited.append(each.waits)
        sums = _joined(sums, each.sums)
    of_steps = StepSums(*(column[1:] for column in sums))
    opinions = stages.opinions()
    return _Passed(
        np.concatenate(leads), waited, of_steps, opening.torn(), verdicts.with_work, opinions,
        tuple(text for doubt in doubts for text in doubt.warnings(opinions)),
    )  # fmt: skip


def _sums(iterations: pl.DataFrame) -> StepSums:
    """Return `StepSums` at zero: one entry per step, and one for ops outside of steps."""
    size = iterations.height + 1
    return StepSums(*np.zeros((2, size), np.int64), *np.full((2, size), NEVER))


def _joined(one: StepSums, other: StepSums) -> StepSums:
    return StepSums(*map(np.add, one[:2], other[:2]), *map(np.maximum, one[2:], other[2:]))


@dataclass(frozen=True)
class _Attributed:
    """A chunk of ops with their stages and iterations, and its share of the sums in `_Passed`."""

    ops: pl.DataFrame
    early: Array
    waits: pl.DataFrame
    sums: StepSums


def _attributed(
    ops: Stream,
    number: int,
    placed: _Placed,
    iterations: pl.DataFrame,
    verdicts: Verdicts,
    stages: Stages,
) -> _Attributed:
    raw, first = ops.read(number, *_RECORDED), ops.first[number]
    calls, launch = placed.calls(number), placed(number)
    threads, steps = launch["thread"], launch["step"]
    structure, by_structure, again = verdicts.structures.read(number, raw.height)
    where, codes, witnesses = placed.why(raw, launch)
    evidence = Launch(
        codes, witnesses, structure, verdicts.on_input_stream(raw, threads),
        verdicts.are_relayed(first, raw.height), verdicts.places.of(first, raw.height),
    )  # fmt: skip
    staged = stages.of(raw, evidence)
    sums = _sums(iterations)
    known = _in_steps(
        StepRows(steps, launch["start"], staged.case), staged.parts(), iterations, sums
    )
    if verdicts.counts_steps:
        known = pl.select(pl.coalesce(known, verdicts.iteration(raw, by_structure))).to_series()
    if verdicts.serves:
        known = known.set(raw["process"].is_in(verdicts.serves), None)
    found = (
        *staged.columns(again), known.alias("iteration"), *_launched(calls, launch),
        _or_null(pl.Series("range", where)).cast(pl.Int64),
    )  # fmt: skip
    made = {column.name: column for column in (*raw, *found)}
    start = raw["start"].to_numpy()
    is_early = launch["start"] > start
    leads = launch["start"][is_early] - start[is_early]
    columns = pl.DataFrame([made[name] for name in OPS.schema])
    return _Attributed(columns, leads, waits(raw, launch["start"]), sums)


def _in_steps(ops: StepRows, parts: Array, iterations: pl.DataFrame, sums: StepSums) -> pl.Series:
    """Count the ops of each step in `sums`; return the iteration of each op, null outside of steps.

    `parts` has a code for each case (combination of evidence): input, backward, update, or other.
    """
    numbers, height = given(iterations["iteration"]), ops.step.size
    found = np.empty(height, np.int64)
    outside = compiled(count_in_steps, height)(ops, parts, numbers, sums, found)
    column = pl.Series(found)
    return column.set(pl.Series(ops.step < 0), None) if outside else column


def _iterations(found: _Steps, verdicts: Verdicts, passed: _Passed, roles: _Roles) -> pl.DataFrame:
    """Return the table of iterations, those marked by ranges with the number of their ops.

    Where ranges mark no steps, the iterations are those inferred from launch order.
    """
    by_ranges = with_work(
        found.iterations.with_columns(source=pl.lit("ranges")), passed.sums, passed.recorded
    )
    by_structure = verdicts.structures.iterations(verdicts.counts_steps, roles.reports)
    if verdicts.serves:
        by_ranges = by_ranges.filter(~pl.col("process").is_in(verdicts.serves))
    return pl.concat([by_ranges, by_structure], how="diagonal_relaxed").sort(
        "process", "start", maintain_order=True
    )


_OF_LAUNCH = ("thread", "start", "end")
_FOUND = {
    "stage", "stage_source", "recomputed", "call", "range", "iteration",
    *(f"launch_{name}" for name in _OF_LAUNCH),
}  # fmt: skip
_RECORDED = [name for name in OPS.schema if name not in _FOUND]
"""Columns of ops that come from the recording, not from attribution."""
_NO_LAUNCH: tuple[np.integer[Any], ...] = (
    np.int32(-1), np.int64(NEVER), np.int64(NEVER), np.int32(-1), np.int32(-1), np.int16(0),
)  # fmt: skip


def _launch(found: Array, contexts: _Contexts) -> Context:
    """Return per op its launching call's thread, times, range, step, and evidence for a stage.

    `found` has the index of the call, -1 if unknown; then the context is `_NO_LAUNCH`.
    """
    chunks = chunks_of(found, contexts.first)
    if not chunks:
        return Context(*(np.full(found.size, none) for none in _NO_LAUNCH))
    out = Context(*(np.empty(found.size, column.dtype) for column in contexts.of(chunks[0])))
    loop = compiled(copy_contexts, int(contexts.first[-1]))
    for chunk in chunks:
        loop(found, int(contexts.first[chunk]), contexts.of(chunk), out)
    return out


def _launched(calls: Array, launch: dict[str, Array]) -> list[pl.Series]:
    """Return the columns of each op's launching call: id, thread, start, end; null if unknown."""
    columns = [pl.Series("call", calls).cast(pl.Int64)]
    columns += [pl.Series(f"launch_{name}", launch[name]) for name in _OF_LAUNCH]
    unknown = pl.Series(calls < 0)
    return [column.set(unknown, None) for column in columns] if unknown.any() else columns


def _lasting(recording: Recording) -> tuple[str, ...]:
    """Return a recording's warnings from reading its file, not those of earlier attributions."""
    earlier = set(stored_findings(recording.tables))
    warnings = (*recording.warnings, *recording.late())
    return without_unmatched(tuple(warning for warning in warnings if warning not in earlier))


def _checks(launches: Launches, leads: Array, ops: int) -> tuple[str, ...]:
    repeated, (earlier, length) = launches.repeated, launches.earlier
    alone = launches.alone - earlier
    before = f"{earlier:,} of {ops:,} ops ({length / 1e6:,.3f} ms) were launched before recording"
    lost = launches.lost
    missing = (
        f"{WORK_MISSING}: {lost.calls:,} of {lost.of:,} calls that launch kernels, copies "
        f"or fills, over {lost.span / 1e6:,.3f} ms, have no op in the recording; GPUs seem idle "
        "meanwhile"
    )
    ends_early = "the recording of GPU work ends early"
    checks = (
        (repeated, f"{repeated:,} API calls repeat the correlation id of another one"),
        (leads.size, early(leads)),
        (earlier, f"{before} began: they are of no step, and no range is known of them"),
        (alone, f"{alone:,} of {ops:,} ops have no launching call: no range is known of these"),
        (lost.matters, missing),
        (lost.late, f"{ends_early}: no op is recorded of its last {count(lost.late, 'launch')}"),
        (lost.dark, f"no op is recorded of processes with {count(lost.dark, 'launch')}"),
        (
            launches.twice > ops // 100,
            f"{launches.twice:,} of {ops:,} ops are in the recording twice: they count twice",
        ),
    )
    return tuple(text for count, text in checks if count)
