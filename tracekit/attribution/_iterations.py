"""Find the training thread of each process, and start and end of each training step.

Also find which steps contain recorded GPU work, and which steps were recorded in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from tracekit.attribution._arrays import StepSums
from tracekit.attribution._launch_loops import NEVER
from tracekit.attribution._passes import PASSES, outermost, passes_of, ranges_around_passes
from tracekit.attribution._rules import Rules
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.errors import MissingDataError
from tracekit.model import STEPS_UNMARKED

_OWN_DOMAIN = "tracekit"
_THREAD = ["process", "thread"]


def training_threads(marks: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return ``process, thread``: the thread that drives each process' training.

    This is the thread whose ranges show the largest number of the three stages forward, backward
    and weight update. Among several such threads, it is the thread with most of these ranges.
    Without such ranges, it is the thread that launches most ops (kernels, copies, memsets). Ranges
    inside autograd markers do not count, because autograd threads are driven by the training
    thread.

    Parameters
    ----------
    marks
        ``process, thread, passes, marks``: number of ranges (`marks`) of each stage (`passes`) on
        the thread, one row per stage.
    launches
        ``process, thread, launches``: number of ops that the thread launched.
    """
    return (
        pl.concat([marks, launches], how="diagonal")
        .group_by("process", "thread")
        .agg(pl.col("passes").drop_nulls().n_unique(), pl.col("marks", "launches").sum())
        .sort("passes", "marks", "launches", "thread", descending=[True, True, True, False])
        .unique("process", keep="first", maintain_order=True)
        .select("process", "thread")
    )


def find_iterations(
    ranges: pl.DataFrame,
    training: pl.DataFrame,
    rules: Rules,
    arrivals: Callable[[], pl.DataFrame],
) -> pl.DataFrame:
    """Return the canonical table ``iterations`` (training steps), as ranges mark them.

    A column ``open`` is added: whether the end of the recording cut the step's range off.

    Parameters
    ----------
    ranges
        The ranges that may mark steps, passes or evaluation. Those in metric evaluation are not
        taken for training steps.
    training
        The training thread of each process.
    rules
        Their list ``iteration`` has the patterns of ranges that are steps. In a process without a
        matching range, steps begin with forward ranges: see `_repeated`.
    arrivals
        Function that returns ``thread, launch`` (ns) of ops that may bring input.

    Raises
    ------
    MissingDataError
        If no range matches the user's pattern for steps.
    """
    outside = _outside_captures(ranges.filter(~pl.col("apart")), rules)
    chosen = [entry["name"] for entry in rules["iteration"] if entry.get("any_stage")]
    named = _named(outside if chosen else _without_groups(outside, training), training)
    if not chosen:
        named = _without_input_alone(named, outside)
    if chosen:
        if named.is_empty():
            raise MissingDataError(
                f"no range outside metric evaluation matches --iteration {chosen[0]!r}",
                "`tracekit breakdown --by range` shows the names of ranges",
            )
        return _numbered(named)
    rest = training.join(named, on="process", how="anti")
    if rest.is_empty():
        return _numbered(named)
    repeated, evaluations = _repeated(outside, rest), ranges.filter("begins")
    if repeated.height:
        repeated = _with_input(repeated, evaluations, arrivals())
    repeated = _until_evaluation(repeated, evaluations)
    return pl.concat([_numbered(named), _numbered(repeated)], how="diagonal").sort(
        "process", "start"
    )


def _outside_captures(ranges: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Drop the ranges that the rules exclude from being steps, and all ranges inside them.

    Only ranges on the same thread count as inside.
    """
    ignored = [n for n, entry in enumerate(rules["iteration"]) if entry.get("ignore")]
    captures = ranges.filter(pl.col("rule").is_in(ignored))
    if captures.is_empty():
        return ranges
    inside = _inside(ranges, captures).filter(pl.col("start") < pl.col("until"))
    return ranges.join(inside.select("range"), on="range", how="anti", maintain_order="left")


def _without_groups(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Drop ranges around several steps from the candidates: those with an update in each of them.

    Such a range is that of a whole program, for example. `training` is the training thread of each
    process.
    """
    updates = ranges.filter(pl.col("stage") == "WU")
    ranges = _without_updates(ranges, training)
    found = ranges.drop_nulls("rule").sort("start")
    steps = found.filter(pl.col("range").is_in(_inside(updates, found)["span"].implode()))
    inside = steps.select(*_THREAD, first="start", second=pl.col("start").shift(-1).over(_THREAD))
    groups = found.join_asof(
        inside, left_on="start", right_on="first", by=_THREAD, strategy="forward",
        allow_exact_matches=False, check_sortedness=False,
    ).filter(pl.col("second") < pl.col("end"))  # fmt: skip
    return ranges.filter(~pl.col("range").is_in(groups["range"].implode()))


def _inside(ranges: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return ranges that begin in the last span begun on their thread: ``span``, to ``until``."""
    begun = spans.sort("start").select(*_THREAD, span="range", begin="start", until="end")
    joined = ranges.select(*_THREAD, "range", "start").sort("start").join_asof(
        begun, left_on="start", right_on="begin", by=_THREAD, check_sortedness=False
    )  # fmt: skip
    return joined.filter(pl.col("start") <= pl.col("until"))


def _without_updates(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Drop weight updates from the candidates for steps, unless they enclose passes."""
    if ranges.filter(pl.col("stage") == "WU", pl.col("rule").is_not_null()).is_empty():
        return ranges
    around = pl.col("range").is_in(ranges_around_passes(ranges, training).implode())
    is_update = (pl.col("stage") == "WU").fill_null(value=False)
    return ranges.filter(~is_update | around)


def _named(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Return per process the outermost ranges that match its rule for training steps.

    That is the first rule of the list ``iteration`` that matches any range of the process.
    """
    found = ranges.drop_nulls("rule")
    found = found.filter(pl.col("rule") == pl.col("rule").min().over("process"))
    return outermost(_on_one_thread(found, training))


def _without_input_alone(steps: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Drop steps that tracekit's own annotation marked, if they contain no pass.

    An annotated step begins when a batch is requested. If no batch comes, or it is not used for
    training, the next step has the same number.
    """
    if not (steps["domain"] == _OWN_DOMAIN).any():
        return steps
    with_pass = _inside(ranges.filter(pl.col("stage").is_in(PASSES)), steps)
    is_held = pl.col("range").is_in(with_pass["span"].implode())
    return steps.filter(is_held | pl.col("domain").ne_missing(_OWN_DOMAIN))


def _on_one_thread(found: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Keep of the step ranges of a process those on its training thread.

    If there are none, keep those on the thread with the most step ranges.
    """
    if found[_THREAD].n_unique() == found["process"].n_unique():
        return found
    best = (
        found.group_by("process", "thread")
        .agg(count=pl.len())
        .join(training.select("process", trainer="thread"), on="process", how="left")
        .sort(
            (pl.col("thread") == pl.col("trainer")).fill_null(value=False), "count", "thread",
            descending=[True, True, False],
        )
        .unique("process", keep="first", maintain_order=True)
    )  # fmt: skip
    return found.join(best.select("process", "thread"), on=["process", "thread"], how="semi")


def _repeated(ranges: pl.DataFrame, training: pl.DataFrame) -> pl.DataFrame:
    """Find steps by the repetition of forward ranges.

    A step begins with the first forward range after a weight update; without weight updates, with
    the first one after a backward range; without either, where the name of the very first forward
    range occurs again, provided that ranges of this name take most of the time of forward ranges
    (otherwise it is the name of a layer).
    """
    passes = outermost(passes_of(ranges, training))
    forward, before = pl.col("stage") == "FP", pl.col("stage").shift(1).over("process")
    updates, backward = ((pl.col("stage") == s).any().over("process") for s in ("WU", "BP"))
    first = pl.col("base").filter(forward).first().over("process")
    first_of_all = forward & (pl.col("base") == first)
    begins = (
        pl.when(updates).then(forward & (before.is_null() | (before == "WU")))
        .when(backward).then(forward & (before.is_null() | (before == "BP")))
        .otherwise(
            first_of_all & (_length(first_of_all) >= THRESHOLDS.first_forward * _length(forward))
        )
    )  # fmt: skip
    steps = (
        passes.with_columns(step=begins.fill_null(value=False).cum_sum().over("process"))
        .filter(pl.col("step") > 0)
        .group_by("process", "step")
        .agg(
            pl.col("thread", "report", "start").first(),
            end=pl.col("end").max(),
            open=pl.col("open").any(),
        )
        .sort("process", "step")
    )
    return (
        steps.filter(pl.len().over("process") > 1)
        .with_columns(number=pl.lit(None, pl.Int64), name=pl.lit(None, pl.String))
        .drop("step")
    )


def _with_input(
    steps: pl.DataFrame, evaluations: pl.DataFrame, arrivals: pl.DataFrame
) -> pl.DataFrame:
    """Begin each step with its input: the `arrivals` launched before its forward range.

    These are as many of the last ones before the range as usual, back to the previous step's last
    range and to an evaluation. Steps stay as they are unless most have such input.
    """
    ended = evaluations.select("process", "thread", evaluated="end").sort("evaluated")
    before = pl.max_horizontal(pl.col("end").shift().over("process"), "evaluated")
    known = steps.sort("start").join_asof(
        ended, left_on="start", right_on="evaluated", by=["process", "thread"],
        check_sortedness=False,
    ).with_columns(before=before, row=pl.int_range(pl.len()))  # fmt: skip
    fed = (
        arrivals.sort("launch")
        .join_asof(
            known.select("thread", "row", "start", "before"), left_on="launch", right_on="start",
            by="thread", strategy="forward", check_sortedness=False,
        )
        .filter(pl.coalesce(pl.col("launch") >= pl.col("before"), pl.col("row").is_not_null()))
        .group_by("row")
        .agg(pl.col("launch").sort(descending=True))
    )  # fmt: skip
    is_later = pl.col("start") > pl.col("start").min().over("process")
    count = pl.col("launch").list.len().filter(is_later)
    usual = count.quantile(0.5, "lower").over("process").cast(pl.Int64)
    most = count.count().over("process") > THRESHOLDS.few_usual * is_later.sum().over("process")
    begins = pl.when(most).then(pl.col("launch").list.head(usual).list.min())
    return (
        known.join(fed, on="row", how="left", maintain_order="left")
        .with_columns(start=begins.fill_null(pl.col("start")))
        .select(steps.columns)
    )


def _length(where: pl.Expr) -> pl.Expr:
    """Return per process the total host time of the ranges that meet the condition `where`."""
    return (
        (pl.col("end") - pl.col("start")).filter(where.fill_null(value=False)).sum().over("process")
    )


def _until_evaluation(steps: pl.DataFrame, evaluations: pl.DataFrame) -> pl.DataFrame:
    """End each step where the next one begins, or an evaluation after the step's last range."""
    begins = evaluations.select("process", "thread", evaluation="start").sort("evaluation")
    following = pl.col("start").shift(-1).over("process", order_by="start")
    return (
        steps.sort("end")
        .join_asof(
            begins,
            left_on="end",
            right_on="evaluation",
            by=["process", "thread"],
            strategy="forward",
            check_sortedness=False,
        )
        .with_columns(end=pl.min_horizontal(pl.coalesce(following, "end"), "evaluation"))
        .drop("evaluation")
    )


def _numbered(steps: pl.DataFrame) -> pl.DataFrame:
    """Give steps the numbers in their names if these are distinct, else count them, per process.

    If two steps overlap, the earlier step ends where the later step starts.
    """
    tells = (pl.col("number").n_unique() == pl.len()) & (pl.col("number").null_count() == 0)
    following = pl.col("start").shift(-1).over("process")
    return steps.sort("process", "start").select(
        "report",
        "process",
        "thread",
        "name",
        "start",
        "number",
        "open",
        end=pl.min_horizontal("end", following),
        iteration=pl.when(tells.over("process"))
        .then("number")
        .otherwise(pl.int_range(pl.len()).over("process")),
    )


def with_work(iterations: pl.DataFrame, sums: StepSums, recorded: pl.Series) -> pl.DataFrame:
    """Replace ``open`` by ``ops`` (number of ops) and ``whole`` (recorded in full).

    The first and the last iteration with GPU work (edges) may have been cut by the recording. They
    are compared with the iterations between them:

    - If iterations without GPU work precede the first edge or follow the last edge, the GPU
      recording most likely began or ended within that edge. The edge is whole only if it has as
      many ops as the largest iteration between the edges.
    - Otherwise an edge is cut if it has over a tenth fewer ops than the smallest iteration between
      the edges, unless this smallest one has over a tenth fewer than their median. The last edge is
      not compared if iterations were found by repetition of forward ranges: work follows these.

    However few iterations there are, an iteration whose range was open when the recording ended is
    cut. The last iteration is also cut if all others have an update after their backward pass and
    the last one has none.

    Parameters
    ----------
    iterations
        The canonical table, with ``open``.
    sums
        Ops launched in each iteration. Input copies are left out when iterations are compared, as
        they may run ahead of their iteration.
    recorded
        Processes with recorded GPU work.
    """
    counted = iterations.with_columns(
        ops=pl.when(pl.col("process").is_in(recorded.implode())).then(pl.Series(sums.ops)),
        steady=pl.Series(sums.steady),
        updated=pl.Series((sums.update > sums.backward) & (sums.backward > NEVER)),
    ).with_row_index("row")
    known = _beside_others(counted)
    at_begin, at_end = pl.col("row") == pl.col("first"), pl.col("row") == pl.col("last")
    lacks_before = at_begin & (pl.col("first") > pl.col("first_of_all"))
    lacks_after = at_end & (pl.col("last") < pl.col("last_of_all"))
    is_told = lacks_before | lacks_after
    alike = pl.col("least") >= THRESHOLDS.like_others * pl.col("usual")
    comparable = ~at_end | pl.col("name").is_not_null()
    is_unlike = comparable & alike & (pl.col("steady") < THRESHOLDS.like_others * pl.col("least"))
    enough = (
        pl.when(pl.col("between") >= THRESHOLDS.iterations_between)
        .then(pl.when(is_told).then(pl.col("steady") >= pl.col("most")).otherwise(~is_unlike))
        .otherwise(~is_told)
    )  # fmt: skip
    lacks_update = at_end & comparable & pl.col("all_updated") & ~pl.col("updated")
    is_torn = pl.col("open") | lacks_update.fill_null(value=False)
    is_complete = (pl.col("ops") > 0) & (~(at_begin | at_end) | enough)
    is_complete = is_complete & pl.when(pl.col("ops").is_not_null()).then(~is_torn)
    return known.select(*iterations.drop("open").columns, "ops", whole=is_complete)


def _beside_others(counted: pl.DataFrame) -> pl.DataFrame:
    """Add columns that compare each iteration with the others of its process.

    ``first_of_all, last_of_all``: row of the first and the last iteration; ``first, last``: of the
    first and the last one with GPU work; ``between``: number of iterations between the latter two;
    ``least, usual, most``: least, median and largest number of ops, without input, among these;
    ``all_updated``: whether all iterations with work but the last have an update after their
    backward pass.
    """
    has_ops = (pl.col("ops") > 0).fill_null(value=False)
    place, count = has_ops.cum_sum(), has_ops.sum()
    is_between = has_ops & (place > 1) & (place < count)
    row, steady = pl.col("row"), pl.col("steady").filter(is_between)
    updated = pl.col("updated").filter(has_ops & (place < count))
    found = {
        "first_of_all": row.first(), "last_of_all": row.last(),
        "first": row.filter(has_ops).first(), "last": row.filter(has_ops).last(),
        "least": steady.min(), "usual": steady.median(), "most": steady.max(),
        "between": is_between.sum(), "all_updated": pl.when(count > 1).then(updated.all()),
    }  # fmt: skip
    return counted.with_columns(**{name: one.over("process") for name, one in found.items()})


_UPDATED = 0.5
"""Largest share of steps with an update at which the others may be parts of a step: skipped updates
of mixed precision are fewer."""
_STEPLESS = 0.01
"""Least share of the GPU work of a recording on a GPU without steps that gives a warning."""
_UNMARKED = 0.1
"""Least share of backward ops, outside and inside of marked steps, from which unmarked steps are
assumed between the marked ones."""
_KERNELS = {
    "process": pl.Int32, "name": pl.String, "updates": pl.Boolean, "before": pl.Boolean,
    "ops": pl.Int64,
}  # fmt: skip


class Opening:
    """Counts kernels up to the first iteration's end, to detect a step that the recording cut."""

    def __init__(self, iterations: pl.DataFrame) -> None:
        first = iterations.sort("start").group_by("process", maintain_order=True).first()
        self._first = first.select("process", begin="start", until="end")
        self._until = max(self._first["until"], default=0)
        self._parts = [pl.DataFrame(schema=_KERNELS)]

    def add(self, ops: pl.DataFrame) -> None:
        """Count kernels that are launched before the end of the first iteration.

        Parameters
        ----------
        ops
            A chunk of the canonical table, by start.
        """
        launched = ops["launch_start"]
        has_early = launched.null_count() or (launched < self._until).any()
        if self._first.is_empty() or not has_early:
            return  # so it goes for nearly all chunks
        stage, kind = (pl.col(name).cast(pl.String) for name in ("stage", "kind"))
        # What was launched before the recording began has no launch.
        launch = pl.coalesce("launch_start", pl.lit(NEVER))
        counts = (
            ops.filter(launch < self._until)
            .filter(kind.is_in(["compute", "collective"]), ~stage.is_in(["IO", "ME"]))
            .join(self._first, on="process")
            .filter(pl.coalesce("launch_start", "start") < pl.col("until"))
            .group_by(
                "process",
                pl.col("name").cast(pl.String),
                updates=(stage == "WU") & (kind == "compute"),
                before=launch < pl.col("begin"),
            )
            .agg(ops=pl.len())
        )
        self._parts.append(pl.DataFrame(counts.select(*_KERNELS), schema_overrides=_KERNELS))

    def torn(self) -> pl.Series:
        """Return the processes whose recording begins within a step.

        In such a process, fewer kernels run before the first iteration than in it. Nearly all
        earlier kernels have names that occur in the first iteration. Of the names that the
        iteration has in its weight update and nowhere else, nearly all occur before the iteration.
        """
        parts = pl.concat(self._parts)
        if not parts["before"].any():
            return parts["process"].clear()
        ops, before = pl.col("ops"), pl.col("before")
        kernels = parts.group_by("process", "name").agg(
            before=ops.filter(before).sum(),
            inside=ops.filter(~before).sum(),
            # Before the first iteration ranges may be missing that tell the stage.
            updates=pl.col("updates").filter(~before).all() & ~before.all(),
        )  # fmt: skip
        part, of_one = pl.col("before"), pl.col("inside")
        known = pl.min_horizontal(part, of_one)
        updates = pl.col("updates")
        found = kernels.group_by("process").agg(
            torn=(known.sum() >= THRESHOLDS.like_others * part.sum())
            & (part.sum() < THRESHOLDS.like_others * of_one.sum())
            & (known.filter(updates).sum() >= THRESHOLDS.like_others * of_one.filter(updates).sum())
            & updates.any()
        )
        return found.filter("torn")["process"]


class DeviceSteps:
    """Finds GPUs on which several processes run steps in the same period, or none does."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def add(self, ops: pl.DataFrame) -> None:
        """Note when each process has work of its steps on each GPU, from a chunk of ops."""
        in_step, length = pl.col("iteration").is_not_null(), pl.col("end") - pl.col("start")
        edges = pl.col("start").filter(in_step).min(), pl.col("end").filter(in_step).max()
        self._parts.append(ops.group_by("device", "process").agg(*edges, ns=length.sum()))

    def warnings(self, _: pl.DataFrame) -> Iterator[str]:
        """Yield warnings on GPUs on which several processes run steps at once, and without steps.

        Tables of steps show the former once for each process, with the work of the others as idle
        time, and leave out the latter.
        """
        if not self._parts:
            return
        owner = pl.concat(self._parts).group_by("device", "process")
        spans = owner.agg(pl.min("start"), pl.max("end"), pl.sum("ns")).sort("device", "start")
        meets = pl.col("start") < pl.col("end").cum_max().shift().over("device")
        for device, other in spans.filter(meets).group_by("device").len().sort("device").rows():
            yield (
                f"{other + 1} processes run steps on device {device} in the same period: in tables "
                "of steps each counts as a separate GPU, on which the work of the others is idle "
                "time; findings add up their steps"
            )
        of_device = spans.group_by("device").agg(pl.sum("ns"), begun=pl.max("start"))
        has_steps = pl.col("begun").count() > 0
        is_much = pl.col("ns") >= _STEPLESS * pl.sum("ns")
        without = of_device.filter(has_steps, pl.col("begun").is_null(), is_much).sort("device")
        for device, length in without.select("device", "ns").rows():
            yield (
                f"no work of device {device} ({length / 1e6:,.3f} ms) is in a step: tables of "
                "steps leave this GPU out"
            )


class Unmarked:
    """Counts ops of backward passes launched outside of all training steps that ranges mark."""

    def __init__(self, iterations: pl.DataFrame) -> None:
        self._spans = iterations.group_by("process").agg(
            begin=pl.col("start").min(), until=pl.col("start").max()
        )
        self._ops: list[pl.DataFrame] = []

    def add(self, ops: pl.DataFrame) -> None:
        """Count ops of backward passes outside of all steps, in a chunk of the table of ops.

        Only those launched between the starts of a process's first and last step count.
        """
        if self._spans.is_empty() or not ops["iteration"].null_count():
            return
        outside = ops.filter(
            pl.col("iteration").is_null(), pl.col("stage").cast(pl.String) == "BP"
        ).join(self._spans, on="process")
        between = pl.col("launch_start").is_between("begin", "until")
        self._ops.append(outside.filter(between).group_by("process").agg(outside=pl.len()))

    def warnings(self, opinions: pl.DataFrame) -> Iterator[str]:
        """Yield a warning if many, but not nearly all, ops of backward passes lie outside steps.

        `opinions`: the table of that name, from which the number of all such ops is taken.
        """
        if not self._ops:
            return
        stage, *sources = (
            pl.col(name).cast(pl.String) for name in ("stage", "stage_source", "other_source")
        )
        backward = opinions.filter(stage == "BP", sources[0] == sources[1])
        of_all = backward.group_by("process").agg(pl.col("ops").sum())
        found = pl.concat(self._ops).group_by("process").agg(pl.col("outside").sum())
        share = pl.col("outside") / pl.col("ops")
        within = share.is_between(_UNMARKED, 1 - _UNMARKED)
        for _, outside, ops in found.join(of_all, on="process").filter(within).iter_rows():
            yield (
                f"{STEPS_UNMARKED}: {outside:,} of {ops:,} ops of backward passes ran "
                "between those they mark; numbers per step may cover two steps or more"
            )


class Updated:
    """Counts steps with a weight update; an update between steps counts for the earlier step."""

    def __init__(self, iterations: pl.DataFrame) -> None:
        self._steps = iterations.select("process", "start", step="start").sort("start")
        self._found = [self._steps.select("process", "step").clear()]

    def add(self, ops: pl.DataFrame) -> None:
        """Note the steps with a weight update, from a chunk of the table of ops."""
        if self._steps.is_empty():
            return
        is_update = (pl.col("stage") == "WU") & (pl.col("kind") == "compute")
        launched = ops.filter(is_update).select("process", start="launch_start").drop_nulls()
        last = launched.sort("start").join_asof(
            self._steps, on="start", by="process", check_sortedness=False
        )
        self._found.append(last.select("process", "step").drop_nulls().unique())

    def warnings(self, _: pl.DataFrame) -> Iterator[str]:
        """Yield warnings on processes whose weights are updated only after some of the steps."""
        of_process = pl.concat(self._found).unique().group_by("process")
        updated = of_process.agg(pl.len(), first=pl.min("step"), last=pl.max("step"))
        between = pl.col("step").is_between("first", "last")
        marked = self._steps.join(updated, on="process").filter(between).group_by("process")
        for _, count, steps in marked.agg(pl.first("len"), steps=pl.len()).sort("process").rows():
            if count <= _UPDATED * steps:
                yield (
                    f"weights are updated in {count:,} of {steps:,} steps that ranges mark: the "
                    "others may be parts of a step, such as micro-batches; `--iteration REGEX` "
                    "names other ranges"
                )


def cuts(iterations: pl.DataFrame, torn: pl.Series) -> pl.DataFrame:
    """Return ``process, iterations, with_work, whole, cut``: one row per process with iterations.

    The counts are those of all iterations, of iterations with GPU work, and of iterations recorded
    in full. ``cut`` is ``begin``, ``end`` or ``both`` if GPU work was not recorded at the start, at
    the end or at both ends of the iterations, else null. Processes in `torn` count as cut at the
    start.
    """
    has_ops, is_complete = pl.col("ops") > 0, pl.col("whole")
    # Of work in one iteration alone, those without any tell at which end it was cut; the only one
    # that there is began in the recording.
    is_torn = (has_ops & ~is_complete) & (has_ops.sum() > 1)
    ends_in_only_one = (has_ops & ~is_complete).last() & (pl.len() == 1)
    lacks_before = pl.col("process").is_in(torn.implode()).first()
    begin = ~has_ops.first() | is_torn.first() | lacks_before
    end = ~has_ops.last() | is_torn.last() | ends_in_only_one
    cut = (
        pl.when(begin & end).then(pl.lit("both"))
        .when(begin).then(pl.lit("begin"))
        .when(end).then(pl.lit("end"))
    )  # fmt: skip
    return (
        iterations.drop_nulls("ops")
        .sort("process", "start")
        .group_by("process", maintain_order=True)
        .agg(
            iterations=pl.len().cast(pl.Int64),
            with_work=has_ops.sum().cast(pl.Int64),
            cut=pl.when(has_ops.any()).then(cut),
            whole=is_complete.sum().cast(pl.Int64),
        )
    )
