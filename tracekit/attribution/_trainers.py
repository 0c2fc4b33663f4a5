"""Teams: the training threads of a process, each with its helper threads and steps.

A process has one training thread, as a rule. Where it has several (MXNet's workers, the stages of a
pipeline), each has its own passes and steps, and a backward thread belongs to the training thread
that uses the same GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.attribution._arrays import Array, Stretches
from tracekit.attribution._thresholds import THRESHOLDS
from tracekit.support.compiled import given


@dataclass(frozen=True)
class Teams:
    """Training threads with their helper threads; one team per training thread.

    The first team of a process has the id of the process; further teams have ids beyond those of
    all processes.
    """

    trainers: pl.DataFrame
    """``process, thread, team``: the training threads, one of each team."""
    further: Array
    """Per thread: its team if that is not the first team of its process, else -1."""
    count: int
    """One more than the largest team number."""

    def of(self, frame: pl.DataFrame) -> pl.Series:
        """Return each row's team (training thread with helpers), by ``thread`` and ``process``."""
        if (self.further < 0).all():
            return frame["process"].alias("team")
        team = pl.Series("team", self.further, pl.Int32).gather(frame["thread"])
        return team.set(team < 0, None).fill_null(frame["process"])

    def trainer_of_each(self) -> Array:
        """Return for each team its training thread, -1 if there is none."""
        trainer = np.full(self.count, -1)
        trainer[self.trainers["team"].to_numpy()] = self.trainers["thread"].to_numpy()
        return trainer

    def apart(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """Return ranges with team ids (training threads with helpers) in place of process ids."""
        return ranges.with_columns(process=self.of(ranges))


def find_teams(
    training: pl.DataFrame, marks: pl.DataFrame, threads: pl.DataFrame, devices: Array, first: int
) -> Teams:
    """Find all training threads of processes that have several, and the helper threads of each.

    A thread is a further training thread if its ranges name the same stages (of forward, backward,
    weight update) as those of the process's training thread. Each of these threads must launch
    kernels on one GPU only, and no two of them on the same. Another thread is a helper of the
    training thread on a GPU if it launches kernels on that GPU only. All remaining threads are
    helpers of the process's training thread.

    Parameters
    ----------
    training
        ``process, thread``: the training thread of each process.
    marks
        ``process, thread, passes, marks``: number of ranges (`marks`) of each stage (`passes`).
    threads
        ``process, thread`` of all threads.
    devices
        Per thread: the device of its kernels; -1 for none, lower for several.
    first
        Team id to give to the first further team.
    """
    of_processes = training.with_columns(team=pl.col("process"))
    further = np.full(devices.size, -1, np.int32)
    if marks.select("process", "thread").n_unique() == marks["process"].n_unique():
        return Teams(of_processes, further, first)
    on = pl.DataFrame({"thread": range(devices.size), "device": devices}).cast(pl.Int32)
    placed = threads.select("process", "thread").join(on, on="thread", maintain_order="left")
    side_by_side = _side_by_side(training, marks, placed)
    others = side_by_side.join(training, on=["process", "thread"], how="anti").sort("thread")
    numbered = others.with_columns(team=pl.int_range(first, first + pl.len(), dtype=pl.Int32))
    served = placed.join(numbered.drop("thread"), on=["process", "device"])
    further[served["thread"].to_numpy()] = served["team"].to_numpy()
    trainers = pl.concat([of_processes, numbered.select(of_processes.columns)])
    return Teams(trainers, further, first + numbered.height)


def steps_of_teams(steps: pl.DataFrame, teams: Teams) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the iterations of processes, and the steps of each team with the row of the iteration.

    A team is a training thread with its helper threads. Iterations are the steps of a process's
    first team. A step of a further team belongs to the iteration with the same number, if range
    names number the steps of both teams; else to the iteration at the same position, if both teams
    have equally many steps and each pair overlaps. An iteration then lasts from the first start to
    the last end of its steps on all teams, or until the next iteration begins. Otherwise the
    further team's work is counted in the steps of the process's training thread. `steps` are the
    steps of each team, from `find_iterations`.

    Returns
    -------
    The iterations; and the steps of teams: ``process, name, start, end, number, row`` (times in
    ns), with the team's number as ``process``, and a null `row` if there is no such iteration.
    """
    further = teams.trainers.filter(pl.col("team") != pl.col("process"))[["process", "team"]]
    is_further = pl.col("process").is_in(further["team"].implode())
    own = steps.filter(~is_further) if further.height else steps
    iterations = own.sort("process", "start", maintain_order=True)
    numbered = iterations.with_columns(row=pl.int_range(pl.len()))
    columns = ["process", "name", "start", "end", "number", "row"]
    if further.is_empty():
        return iterations, numbered[columns]
    of_process = numbered.join(further, on="process").select(
        pl.col("team").alias("process"), "iteration", "name", "number", "start", "end", "row"
    )
    of_team = steps.join(further.select(process="team"), on="process", how="semi")
    paired = _paired(of_team, of_process)
    left = of_process.join(paired, on="process", how="anti")
    every = pl.concat([frame.select(columns) for frame in (numbered, paired, left)])
    return _spanning(numbered, paired), every.sort("process", "start", maintain_order=True)


def _spanning(iterations: pl.DataFrame, paired: pl.DataFrame) -> pl.DataFrame:
    """Extend each iteration from the first start to the last end of its steps on all teams.

    It ends no later than the next iteration of its process begins.
    """
    steps = pl.concat([frame.select("row", "start", "end") for frame in (iterations, paired)])
    spans = steps.drop_nulls().group_by("row").agg(pl.col("start").min(), pl.col("end").max())
    following = pl.col("start").shift(-1).over("process")
    return (
        iterations.drop("start", "end")
        .join(spans, on="row", maintain_order="left")
        .with_columns(end=pl.min_horizontal("end", following))
        .select(iterations.columns)
        .drop("row")
    )


def _paired(of_team: pl.DataFrame, of_process: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of further training threads (`of_team`) that match an iteration.

    `of_process` has the iterations: the steps of each process's first training thread. Steps of a
    thread match if numbers in names pair them, or if all overlap the iteration at their
    position.
    """
    both = of_team.join(
        of_process, on=["process", "iteration"], how="full", coalesce=True, suffix="_known"
    ).sort("process", "iteration")
    overlap = (pl.col("start") < pl.col("end_known")) & (pl.col("start_known") < pl.col("end"))
    in_order = overlap.fill_null(value=False).all()
    in_names = _are_named("number", "start") & _are_named("number_known", "start_known")
    return both.filter((in_names | in_order).over("process")).drop_nulls("start")


def _are_named(number: str, start: str) -> pl.Expr:
    """Return an expression: whether all steps have a number in their name, rising with time.

    `number` and `start` are names of columns: the step's number in its name, and its start.
    """
    is_told = (pl.col(number) == pl.col("iteration")).fill_null(value=False)
    rises = pl.col(start).drop_nulls().diff().fill_null(1).min() > 0
    return (is_told | pl.col(start).is_null()).all() & rises


def _side_by_side(
    training: pl.DataFrame, marks: pl.DataFrame, placed: pl.DataFrame
) -> pl.DataFrame:
    """Return ``process, thread, device`` of the training threads of processes with several.

    These threads have ranges of the same stages, and each launches kernels on a GPU of its own.
    `placed` has the device of the threads that launch kernels on one.
    """
    passes = marks.group_by("process", "thread").agg(pl.col("passes").unique().sort())
    wanted = training.join(passes, on=["process", "thread"]).select("process", "passes")
    alike = (
        passes.filter(pl.col("passes").list.len() >= THRESHOLDS.told_apart)
        .join(wanted, on=["process", "passes"], how="semi")
        .join(placed, on=["process", "thread"])
    )
    clear = (pl.col("device") >= 0).all() & (pl.col("device").n_unique() == pl.len())
    return alike.filter((clear & (pl.len() > 1)).over("process")).drop("passes")


@dataclass(frozen=True)
class Spans:
    """Time intervals of each training thread (team), such as steps, one after the other."""

    rows: pl.DataFrame
    """``process, start, end, number`` (times in ns), ordered by process and start; ``process`` is
    the team's number."""
    teams: int
    """Number of teams."""

    def arrays(self) -> Stretches:
        """Return the intervals as arrays for loops, before any team's first interval has begun."""
        process = self.rows["process"].to_numpy()
        first = np.searchsorted(process, np.arange(self.teams + 1))
        start, end, number = (given(self.rows[n], null=-1) for n in ("start", "end", "number"))
        return Stretches(given(pl.Series(first)), start, end, number, first[:-1] - 1)

    def last(self) -> Array:
        """Return for each team the end of its last interval, ns."""
        last = np.full(self.teams, np.iinfo(np.int64).min)
        np.maximum.at(last, self.rows["process"].to_numpy(), self.rows["end"].to_numpy())
        return last
