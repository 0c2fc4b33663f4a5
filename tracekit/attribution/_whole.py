"""Which iterations hold recorded GPU work, and which of them were recorded whole."""

from __future__ import annotations

import polars as pl

from tracekit.attribution._chosen import CHOSEN
from tracekit.attribution._columns import StepSums
from tracekit.attribution._launch_loops import NEVER


def with_work(iterations: pl.DataFrame, sums: StepSums, recorded: pl.Series) -> pl.DataFrame:
    """Add ``ops`` and ``whole``, in place of ``open``.

    The first and the last iteration with work may have been cut. Where iterations beyond hold no
    work at all there was a cut, and most likely in that iteration: it counts as whole if it holds
    as many ops as the largest one between. Where nothing else says so it counts as cut if those
    between are alike and it holds over a tenth less than any of them. The last one that repetition
    tells ends before what follows its ranges, which the others hold, so its count says nothing.

    However few there are, one whose range was open when the recording ended is cut; so is the last
    one if it has no update after its backward pass and all others have.

    Parameters
    ----------
    iterations
        The canonical table, with ``open``.
    sums
        What was launched in each. What counts in a comparison of iterations is all but input, which
        runs ahead.
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
    alike = pl.col("least") >= CHOSEN.like_others * pl.col("usual")
    comparable = ~at_end | pl.col("name").is_not_null()
    is_unlike = comparable & alike & (pl.col("steady") < CHOSEN.like_others * pl.col("least"))
    enough = (
        pl.when(pl.col("between").fill_null(0) >= CHOSEN.iterations_between)
        .then(pl.when(is_told).then(pl.col("steady") >= pl.col("most")).otherwise(~is_unlike))
        .otherwise(~is_told)
    )  # fmt: skip
    lacks_update = at_end & comparable & pl.col("all_updated") & ~pl.col("updated")
    is_torn = pl.col("open") | lacks_update.fill_null(value=False)
    whole = (pl.col("ops") > 0) & (~(at_begin | at_end) | enough)
    whole = whole & pl.when(pl.col("ops").is_not_null()).then(~is_torn)
    return known.select(*iterations.drop("open").columns, "ops", whole=whole)


def _beside_others(counted: pl.DataFrame) -> pl.DataFrame:
    """Add to each iteration what is known of all of its process.

    Those are ``first_of_all, last_of_all``; of those with work ``first, last``; how many there
    are ``between`` these, with the ``least, usual, most`` ops that one of them holds; and
    ``all_updated`` of all but the last one.
    """
    row, steady = pl.col("row"), pl.col("steady")
    held = counted.filter(pl.col("ops") > 0)
    place, count = (each.over("process") for each in (pl.int_range(pl.len()), pl.len()))
    of_processes = (
        counted.group_by("process").agg(first_of_all=row.first(), last_of_all=row.last()),
        held.group_by("process").agg(first=row.first(), last=row.last()),
        held.filter((place > 0) & (place < count - 1)).group_by("process").agg(
            least=steady.min(), usual=steady.median(), most=steady.max(), between=pl.len()
        ),
        held.filter(place < count - 1).group_by("process").agg(
            all_updated=pl.col("updated").all()
        ),
    )  # fmt: skip
    for table in of_processes:
        counted = counted.join(table, on="process", how="left", maintain_order="left")
    return counted


_KERNELS = {
    "process": pl.Int32, "name": pl.String, "updates": pl.Boolean, "before": pl.Boolean,
    "ops": pl.Int64,
}  # fmt: skip


class Opening:
    """Kernels that a recording begins with, which may end a step whose range it has not.

    Parameters
    ----------
    iterations
        The canonical table.
    """

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
        if self._first.is_empty() or not (launched.is_null() | (launched < self._until)).any():
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

        The kernels before the first iteration are then less than it holds, and nearly all among its
        own; and there are as many of those that its weight update alone runs.
        """
        ops, before = pl.col("ops"), pl.col("before")
        kernels = pl.concat(self._parts).group_by("process", "name").agg(
            before=ops.filter(before).sum(),
            inside=ops.filter(~before).sum(),
            # Before the first iteration ranges may be missing that tell the stage.
            updates=pl.col("updates").filter(~before).all() & ~before.all(),
        )  # fmt: skip
        part, of_one = pl.col("before"), pl.col("inside")
        known = pl.min_horizontal(part, of_one)
        updates = pl.col("updates")
        found = kernels.group_by("process").agg(
            torn=(known.sum() >= CHOSEN.like_others * part.sum())
            & (part.sum() < CHOSEN.like_others * of_one.sum())
            & (known.filter(updates).sum() >= CHOSEN.like_others * of_one.filter(updates).sum())
            & updates.any()
        )
        return found.filter("torn")["process"]


def cuts(iterations: pl.DataFrame, torn: pl.Series) -> pl.DataFrame:
    """Return ``process, iterations, with_work, whole, cut`` of processes that have iterations.

    ``cut`` is ``begin``, ``end`` or ``both`` where the recording of GPU work lacks that end of the
    iterations, else null. The one of the processes in `torn` begins within a step.
    """
    held, whole = pl.col("ops") > 0, pl.col("whole")
    # Of work in one iteration alone, those without any tell at which end it was cut; the only one
    # that there is began in the recording.
    is_torn = (held & ~whole) & (held.sum() > 1)
    ends_in_only_one = (held & ~whole).last() & (pl.len() == 1)
    lacks_before = pl.col("process").is_in(torn.implode()).first()
    begin = ~held.first() | is_torn.first() | lacks_before
    end = ~held.last() | is_torn.last() | ends_in_only_one
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
            with_work=held.sum().cast(pl.Int64),
            cut=pl.when(held.any()).then(cut),
            whole=whole.sum().cast(pl.Int64),
        )
    )
