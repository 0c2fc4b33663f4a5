"""Responses to requests of the page: only integers, known words and search text are accepted."""

from __future__ import annotations

import base64
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import polars as pl

from tracekit.analysis import step_detail
from tracekit.analysis.calls import collective_calls
from tracekit.analysis.diagnosis import longest_examples
from tracekit.analysis.idle_account import CAUSES, host_activity, loading_threads
from tracekit.analysis.idle_time import idle_by
from tracekit.analysis.statistics import outliers
from tracekit.errors import UsageError
from tracekit.model import NO_KERNELS, STAGES, WORK_MISSING, Run
from tracekit.present import printable, readable_names, to_json
from tracekit.view._blocks import broken_down
from tracekit.view._counter_lanes import SAMPLED, Counter, sampled
from tracekit.view._lanes import MOST_TEXT, Kept, RunLanes
from tracekit.view._server import Endpoint, Query, Refused, Turns
from tracekit.view._sums import OF_OP
from tracekit.view._tiles import COMMUNICATION, LOOKS

if TYPE_CHECKING:
    from tracekit.model import Trace

_IDLE = "idle"
KEYS = {
    **{key: f"by {key}" for key in ("stage", "kind", "kernel", "device")}, _IDLE: "idle by cause",
    "metrics": "counters", "memory": "memory in use",
}  # fmt: skip
"""Keys by which the time of a selection can be broken down, or its idle time, by cause."""
_WHICH = ("longest", "next", "previous")
_MOST_PIXELS = 8_192
_MOST_ROWS = 100
_MOST_NAMES = 200
_MOST_STEPS = 20_000
_FEW = 8
_LONGEST_WORDS = 200
_LONG_RUN = 1_000_000
"""Number of ranges from which details of an op are found from the step around it only; and number
of ops from which an op outside of steps is told without what it waited for."""
_MOST_EXPORTED = 100_000
"""Largest number of ops of the steps that are handed to Perfetto."""
_PIECES = 512
"""The next hit is first searched in one part in 512 of a run."""
_QUICK, _SLOW = 4, 2
"""Number of requests handled at once: those that read little, and those that read much."""
_STRETCH = ("run", "from", "to")
_QUICKLY = {
    "runs": (), "drawn": (*_STRETCH, "pixels"), "flows": _STRETCH, "find": ("run", "words"),
    "hit": ("run", "words", "which", "time"), "op": ("run", "op"),
}  # fmt: skip
_SLOWLY = {
    "run": ("run",), "idle": (*_STRETCH, "pixels"), "waited": ("run", "op"), "steps": ("run",),
    "findings": ("run",), "timeline": _STRETCH, "table": (*_STRETCH, "by", "lanes"),
}  # fmt: skip
"""Requests that read little, and those that read much: name -> parameters."""
_MISSING = (NO_KERNELS, WORK_MISSING, "no GPU work was recorded")
"""Parts of warnings that the page shows above the chart, as lanes without ops look idle."""
T = TypeVar("T")


class AskedRun(Run, Protocol):
    """Interface of the view to a run; `tracekit.Run` implements it."""

    breakdown: Any
    diagnose: Any

    def require_memory(self, question: str) -> None:
        """Raise an error if the question (command) needs more memory than the machine has free."""

    def within(self, *, between: tuple[int, int]) -> Any:
        """Return the part of the run in a time interval, ns, as `tracekit.Run.within`."""

    def export(
        self, path: Path, *, to: str = "", iterations: tuple[int, int] | None = None
    ) -> None:
        """Write the run, or some of its steps, in the format of another program (`to`)."""

    @property
    def kept(self) -> Kept | None:
        """Cache of values computed from the stored tables, as `tracekit.Run.kept`."""


class AskedRuns:
    """Answers the requests of the view's page (in the browser) about its runs.

    Parameters
    ----------
    runs
        The runs that the page shows.
    store
        Folder of the store to name in commands; None if commands find it themselves.
    """

    def __init__(self, runs: Sequence[AskedRun], store: Path | None = None) -> None:
        self._runs = [SeenRun(run) for run in runs]
        self._store = store

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the functions that answer requests: path -> function."""
        return {
            f"/{name}": (partial(_checked, getattr(self, name), given), turns)
            for turns, names in ((Turns(_QUICK), _QUICKLY), (Turns(_SLOW), _SLOWLY))
            for name, given in names.items()
        }

    def prepare(self) -> None:
        """Compute now what requests about the first run need."""
        with suppress(Exception):  # an error is shown to who asks for them
            self._runs[0].keep()

    def runs(self, _: Query) -> dict[str, Any]:
        """Return the names of the runs, the stages, and causes of idle time in words."""
        names = [printable(each.run.name) for each in self._runs]
        none = {each for each in SAMPLED if not any(s.run.trace.height(each) for s in self._runs)}
        keys = {key: label for key, label in KEYS.items() if key not in none}
        colours = {COMMUNICATION: "comm", **{words: cause for cause, words in CAUSES.items()}}
        return {"runs": names, "stages": LOOKS, "order": STAGES, "keys": keys, "causes": CAUSES,
                "colours": colours}  # fmt: skip

    def run(self, query: Query) -> dict[str, Any]:
        """Return a run's lanes (rows of the chart), its first start, and its length, ns."""
        seen = self._seen(query)
        lanes, (begin, end) = seen.lanes.lanes, seen.lanes.edges
        return {
            "begin": begin,
            "span": end - begin,
            "lanes": [
                {"kind": each.kind, "label": each.label, "brief": each.brief,
                 "is_first": each.is_first, "where": where,
                 **(each.tiles.scale if isinstance(each.tiles, Counter) else {})}
                for each, where in zip(lanes, seen.lanes.conditions, strict=True)
            ],
            "lost": seen.lanes.lost,
            "missing": [f"{text}." for text in seen.run.warnings if any(map(text.count, _MISSING))],
        }  # fmt: skip

    def steps(self, query: Query) -> dict[str, Any]:
        """Return starts and ends of steps on the GPUs, and which steps are outliers."""
        spans = self._seen(query).steps.drop_nulls("iteration")
        lengths = step_detail.step_lengths(spans)
        edges = spans.group_by("iteration").agg(pl.col("start").min(), pl.col("end").max())
        rows = edges.sort("iteration").with_columns(step_ns=lengths["step_ns"])
        unlike = rows[outliers(rows["step_ns"].to_numpy())]
        median = rows["step_ns"].median()
        most = unlike.with_columns(share=pl.col("step_ns") / median).filter(
            pl.col("share").is_finite()
        )
        shown = rows.head(_MOST_STEPS).sort("start")
        return {
            **{name: shown[name].to_list() for name in ("iteration", "start", "end")},
            "unlike": most.top_k(_FEW, by=(pl.col("share") - 1).abs()).to_dicts(),
            "lost": rows.height - shown.height,
        }

    def findings(self, query: Query) -> dict[str, Any]:
        """Return the findings of `diagnose`, and the longest example of each in the slowest step.

        Without steps the whole run is searched.
        """
        seen = self._seen(query)
        run, spans, answer = seen.run, seen.steps, seen.run.diagnose.answer()
        lengths = step_detail.step_lengths(spans.drop_nulls("iteration"))
        step = step_detail.slowest_step(lengths)
        step_spans = spans.filter(pl.col("iteration").eq_missing(step))
        ops, idle = (
            find(run.trace, step_spans) for find in (step_detail.ops_inside, step_detail.idle_spans)
        )
        places = {**longest_examples(ops, idle)}
        if step is not None and step == lengths["iteration"][0]:
            start, end = step_spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
            places["cold_steps"] = 0, start, end
        where = f"The longest of it in {'the recording' if step is None else f'step {step}'}"
        rows = [
            (printable(finding), "The first step" if rule == "cold_steps" else where,
             places.get(rule, (0, 0, 0))[1:])
            for rule, finding in answer.rows.select("rule", "finding").iter_rows()
        ]  # fmt: skip
        return {"findings": rows, "empty": answer.empty}

    def timeline(self, query: Query) -> dict[str, str]:
        """Return the steps in an interval as a Perfetto file; a run without steps as a whole."""
        seen, (start, end) = self._seen(query), _stretch(query)
        steps = seen.steps.drop_nulls("iteration")
        inside = pl.min_horizontal("end", end) - pl.max_horizontal("start", start)
        length = pl.min_horizontal(pl.col("end") - pl.col("start"), end - start)
        # Around one step, the edges of its neighbours are in sight.
        in_sight = steps.filter(10 * inside > length)
        begin, until, *numbers = in_sight.select(
            pl.col("start").min(), pl.col("end").max(), first=pl.col("iteration").min(),
            last=pl.col("iteration").max(),
        ).row(0)  # fmt: skip
        edges = seen.lanes.edges if steps.is_empty() else (begin, until)
        if None in edges or seen.lanes.starting(*edges) > _MOST_EXPORTED:
            problem = "no step" if None in edges else f"more than {_MOST_EXPORTED:,} ops"
            hint = "write all with tracekit export" if steps.is_empty() else "zoom to some steps"
            raise UsageError(f"{problem} in sight", hint)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "steps.json.gz")
            iterations = None if steps.is_empty() else (numbers[0], numbers[1])
            seen.run.export(file, to="chrome", iterations=iterations)
            content = base64.b64encode(file.read_bytes()).decode()
        name = "-".join([seen.run.name, *(f"{each}" for each in iterations or ())])
        return {"file": f"{name}.json.gz", "content": content}

    def drawn(self, query: Query) -> dict[str, Any]:
        """Return the picture of an interval of time; see `RunLanes.drawn`."""
        pixels = _number(query, "pixels", 1, _MOST_PIXELS)
        return self._seen(query).lanes.drawn(*_stretch(query), pixels)

    def flows(self, query: Query) -> dict[str, Any]:
        """Return the launches of the ops in an interval of time; see `RunLanes.flows`."""
        return self._seen(query).lanes.flows(*_stretch(query))

    def idle(self, query: Query) -> dict[str, Any]:
        """Return the causes of idle time in an interval of time; see `RunLanes.idle`."""
        pixels = _number(query, "pixels", 1, _MOST_PIXELS)
        return self._seen(query).lanes.idle(*_stretch(query), pixels)

    def table(self, query: Query) -> dict[str, Any]:
        """Return `breakdown`, `idle` or counters of an interval, and the command that prints it.

        If the query has ``lanes`` (conditions of lanes, joined by ``or``), the table has only rows
        of the GPUs and streams of these lanes.
        """
        seen, (start, end), by = self._seen(query), _stretch(query), _word(query, "by", [*KEYS])
        gpus, keys, where = _chosen(seen, query.get("lanes", ""), by)
        options = ["--between", f"{_seconds(start)}:{_seconds(end)}"]
        if by in SAMPLED:
            answer = sampled(seen.run.trace, by, start, end, gpus)
            options = [str(answer.meta["query"])]
        elif by == _IDLE:
            seen.run.require_memory(_IDLE)
            part = seen.run.within(between=(start, end))
            answer = idle_by(part.trace, keys.split(","), waits=False).warning(part.warnings)
        elif gpus:
            answer = seen.run.breakdown.answer(by=keys, between=(start, end))
        else:
            answer = broken_down(seen.run, seen.lanes.sums, by, start, end)
        if by not in SAMPLED:
            options = ["--by", keys, *options, *(["--where", where] if gpus else [])]
            answer = answer.choosing(where or ())
        meta = {} if gpus else answer.meta  # of all GPUs
        rows = answer.rows.head(_MOST_ROWS)
        text = to_json(answer.command, seen.run.name, meta, rows)
        command = ["tracekit", answer.command, seen.run.name, *options]
        command += [] if self._store is None else ["--store", str(self._store)]
        return {
            **json.loads(text),
            "shell": shlex.join(command),
            "lost": answer.rows.height - rows.height,
            "warnings": [printable(each) for each in answer.warnings],
        }

    def find(self, query: Query) -> dict[str, Any]:
        """Return the op names that contain a text (ignoring case), or match it as an expression."""
        found = self._seen(query).matching(_words(query))
        full = [printable(name) for name in found["name"].head(_MOST_NAMES)]
        short = readable_names(full)
        most = zip(full, *found.select("ops", "total").head(_FEW).get_columns(), strict=False)
        return {
            "names": found.height,
            "ops": int(found["ops"].sum()),
            "most": [{"name": short[name], "ops": ops, "total": ns} for name, ops, ns in most],
            "full": [name[:MOST_TEXT] for name in full],
        }

    def hit(self, query: Query) -> dict[str, Any]:
        """Return the longest op with a matching name, or the nearest before or after a time."""
        seen, which = self._seen(query), _word(query, "which", _WHICH)
        time = _number(query, "time", -_LAST, _LAST)
        names = seen.matching(_words(query))
        if which == "longest":
            most = names.top_k(1, by="most")["longest"]
            ops = [seen.op(number) for number in most]
            return {"hit": next((_place(seen, op.row(0, named=True)) for op in ops), None)}
        return {"hit": self._beside(seen, names["name"], time, is_after=which == "next")}

    def _beside(
        self, seen: SeenRun, names: pl.Series, time: int, *, is_after: bool
    ) -> dict[str, Any] | None:
        """Return the op nearest to a time, after or before it, with one of these names; or None."""
        first, last = seen.lanes.edges
        has_name = pl.col("name").cast(pl.String).is_in(names.implode())
        ops = seen.run.trace["ops"].filter(has_name).select("op", "start", "end", *OF_OP)
        start, reach = pl.col("start"), max((last - first) // _PIECES, 1)
        time = min(max(time, first - 1), last + 1)
        while not names.is_empty() and (time < last if is_after else time > first):
            piece = (time + 1, time + reach) if is_after else (time - reach, time - 1)
            order = [start if is_after else -start, pl.col("op")]
            near = ops.filter(start.is_between(*piece)).collect()
            if near.height:
                return _place(seen, near.bottom_k(1, by=order).row(0, named=True))
            time, reach = piece[1] if is_after else piece[0], reach * 4
        return None

    def op(self, query: Query) -> dict[str, Any]:
        """Return all details of an op."""
        seen, found = self._op(query)
        details = seen.details(found)
        shown = {k: printable(v) if isinstance(v, str) else v for k, v in details.items()}
        same = seen.lanes.sums.names.filter(pl.col("name") == str(found["name"][0]))
        alike = same.select("ops", "total").row(0, named=True) if same.height else {}
        name = printable(str(found["name"][0] or "(no name)"))
        row = found.row(0, named=True)
        launch = {"launch_start": row["launch_start"], "launch_lane": seen.lanes.of_thread(row)}
        return {**shown, **alike, **launch, "name": name, **_place(seen, row)}

    def waited(self, query: Query) -> dict[str, Any]:
        """Return why the GPU was idle before an op, and the ops of its collective on all ranks.

        ``idle``: rows ``cause, idle_ns`` in order of time; ``members``: where the chart shows the
        collective's ops.
        """
        seen, op = self._op(query)
        trace, members = seen.around(op), op.clear()
        if trace is not None and op["kind"][0] == "collective":
            calls = collective_calls(trace)
            match = calls.filter(pl.col("op") == op["op"][0])["match"].drop_nulls()
            same = calls.filter(pl.col("match").is_in(match.implode()))["op"]
            members = trace["ops"].filter(pl.col("op").is_in(same.implode())).collect()
        idle = [] if trace is None else _idle_before(trace, op)
        places = [{"device": row["device"], **_place(seen, row)}
                  for row in members.sort("start", "op").head(_MOST_ROWS).to_dicts()]  # fmt: skip
        return {"idle": idle, "members": places}

    def _op(self, query: Query) -> tuple[SeenRun, pl.DataFrame]:
        """Return the run and the row of the op that a request names."""
        seen = self._seen(query)
        found = seen.op(_number(query, "op", 0, _LAST))
        if found.is_empty():
            raise Refused(404, "unknown op")
        return seen, found

    def _seen(self, query: Query) -> SeenRun:
        return self._runs[_number(query, "run", 0, len(self._runs) - 1)]


class SeenRun:
    """A run and the lanes (rows of its chart)."""

    def __init__(self, run: AskedRun) -> None:
        self.run, self.lanes = run, RunLanes(run.trace, run.kept)
        self._near: _Near | None = None

    def keep(self) -> None:
        """Compute what pictures, steps and causes of idle time need, and cache it with the run."""
        _ = self.lanes.lanes, self.steps
        if len(self.run.trace.parts()) == 1:  # parts of a divided run are not kept
            for of_run in (host_activity, loading_threads):
                of_run(self.run.trace)

    @property
    def steps(self) -> pl.DataFrame:
        """Start and end of each step on each GPU; see `step_detail.step_spans`."""
        return self.run.trace.once(step_detail.step_spans)

    def op(self, number: int) -> pl.DataFrame:
        """Return the row of an op; no row if there is none."""
        return self.run.trace.rows("ops", pl.Series([number]), _SHOWN)

    def details(self, op: pl.DataFrame) -> dict[str, Any]:
        """Return all details of an op; of a long run only details found in the step around it.

        Otherwise the layers of all ranges and the sizes of all collectives would be needed.
        """
        trace = self.run.trace
        if trace.height("ranges") > _LONG_RUN:
            near = self._near
            if near is None or not near.holds(op):
                near = self._near = _Near.of(trace, op)
            trace, op = near.trace, near.numbered(op)
        return step_detail.details(trace, op).row(0, named=True)

    def around(self, op: pl.DataFrame) -> Trace | None:
        """Return the run's tables around the step of an op.

        If the op is outside of steps: all tables of a short run, else None.
        """
        trace, steps, step = self.run.trace, self.steps, op["iteration"][0]
        if step in steps["iteration"].drop_nulls().to_list():
            return step_detail.around_steps(trace, steps, step, step)
        return None if trace.height("ops") > _LONG_RUN else trace

    def matching(self, words: str) -> pl.DataFrame:
        """Return rows of `RunSums.names` whose name contains a text, or matches it as a pattern."""
        holds = pl.col("name").str.contains(f"(?i){re.escape(words)}")
        try:
            return self.lanes.sums.names.filter(holds | pl.col("name").str.contains(f"(?i){words}"))
        except pl.exceptions.ComputeError:  # no regular expression
            return self.lanes.sums.names.filter(holds)


_SHOWN = pl.exclude("report", "short_name", "collective", "host_memory", "graph_node", "launch_end",
                   "recomputed")  # fmt: skip
"""Columns of an op that are shown, or that its details are found by."""
_SPAN = {"device": pl.Int32, "start": pl.Int64, "end": pl.Int64}
_STEP = ("process", "iteration")
_LAUNCH = pl.coalesce("launch_start", "start")


@dataclass(frozen=True)
class _Near:
    """The step around an op: its number, interval, ranges, and a trace of that step alone."""

    step: tuple[int, int | None]
    edges: tuple[int, int]
    ranges: Mapping[int, int]
    """Number of a range in the run -> its number in `trace`."""
    trace: Trace

    @classmethod
    def of(cls, trace: Trace, op: pl.DataFrame) -> _Near:
        """Read the step that contains an op, and renumber its ranges."""
        number, step, launch = op.select(*_STEP, _LAUNCH).row(0)
        of_step = pl.col("process") == number, pl.col("iteration") == pl.lit(step, pl.Int64)
        steps = trace.once(_iterations).filter(*of_step)
        times = *steps["start"], *steps["end"], launch
        begin, end = min(times), max(times)
        near, ranges = step_detail.around(trace, begin, end, number)
        # Calls are found by their number: a test of their times would read more columns.
        part = {name: near[name] for name in ("ops", "ranges", "host", "syncs")}
        # Paths are opened in the run, for all its steps.
        near = trace.with_part({**part, "iterations": steps.lazy(), "paths": trace["paths"]})
        numbers = dict(zip(ranges, range(len(ranges)), strict=True))
        return cls((number, step), (begin, end), numbers, near)

    def numbered(self, op: pl.DataFrame) -> pl.DataFrame:
        """Return the op with the number that its range has among the ranges read."""
        number = self.ranges.get(op["range"][0])
        return op.with_columns(range=pl.lit(number, op.schema["range"]))

    def holds(self, op: pl.DataFrame) -> bool:
        """Test whether the step that was read has all rows that this op's details need."""
        *step, around, at = op.select(*_STEP, "range", _LAUNCH).row(0)
        is_of_step = (*step,) == self.step and self.edges[0] <= at <= self.edges[1]
        return is_of_step and (around is None or around in self.ranges)


def _iterations(trace: Trace) -> pl.DataFrame:
    return trace.read("iterations")


def _chosen(seen: SeenRun, lanes: str, by: str) -> tuple[Sequence[int], str, str]:
    """Return GPUs, keys and row condition of a table by `by` that shows only chosen `lanes`.

    Without lanes it shows the whole run: no GPUs, an empty condition.
    """
    chosen, known = [*filter(None, lanes.split(" or "))], seen.lanes.conditions
    if not {*chosen} <= {*known}:
        raise Refused(400, "lanes are GPUs and streams of the run")
    selected = [lane for lane, each in zip(seen.lanes.lanes, known, strict=True) if each in chosen]
    gpus = sorted({int(lane.key[0] or 0) for lane in selected})
    if by == _IDLE:  # of a GPU, as no stream is idle by itself
        by, chosen = "cause", [f"device={gpu}" for gpu in gpus]
    is_stream = any(" and " in each for each in chosen)
    owner = ["stream" if is_stream else "device"] if chosen else []
    return gpus, ",".join(dict.fromkeys([*owner, by])), " or ".join(chosen)


def _idle_before(trace: Trace, op: pl.DataFrame) -> list[dict[str, Any]]:
    """Return ``cause, idle_ns`` of the idle time just before an op on its GPU, in order of time."""
    device, until = op.select("device", "start").row(0)
    starts = pl.col("start").filter(device=device)
    begin = trace["ops"].select(starts.min()).collect().item()
    span = pl.DataFrame({"device": [device], "start": [begin], "end": [until]}, _SPAN)
    idle = step_detail.idle_spans(trace, span) if begin < until else pl.DataFrame()
    found = list[dict[str, Any]]()
    for row in idle.reverse().head(_MOST_ROWS).to_dicts():
        if row["end"] != until:
            break
        until = row["start"]
        found.append({"cause": CAUSES[row["cause"]], "idle_ns": row["end"] - until})
    return found[::-1]


def _place(seen: SeenRun, row: Mapping[str, Any]) -> dict[str, Any]:
    return {"op": row["op"], "start": row["start"], "end": row["end"], "lane": seen.lanes.of(row)}


_LAST = (1 << 53) - 1
"""Greatest integer that a script can represent."""


def _checked(answer: Callable[[Query], T], names: Sequence[str], query: Query) -> T:
    """Answer a request that has the parameters `names`; lanes may be missing."""
    if set(names) - {"lanes"} <= query.keys() <= set(names):
        return answer(query)
    raise Refused(400, f"the parameters are {', '.join(names) or 'none'}")


def _number(query: Query, name: str, least: int, most: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,16}", query[name]) or not least <= int(query[name]) <= most:
        raise Refused(400, f"{name} is a number from {least} to {most}")
    return int(query[name])


def _stretch(query: Query) -> tuple[int, int]:
    start, end = (_number(query, name, -_LAST, _LAST) for name in ("from", "to"))
    if start >= end:
        raise Refused(400, "a stretch of time begins before it ends")
    return start, end


def _word(query: Query, name: str, known: Sequence[str]) -> str:
    if query[name] not in known:
        raise Refused(400, f"{name} is one of {', '.join(known)}")
    return query[name]


def _words(query: Query) -> str:
    if not 0 < len(query["words"]) <= _LONGEST_WORDS:
        raise Refused(400, f"words are of 1 to {_LONGEST_WORDS} letters")
    return query["words"]


def _seconds(time: int) -> str:
    return f"{Decimal(time).scaleb(-9).normalize():f}s"
