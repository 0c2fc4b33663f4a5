"""Idle time of a run by cause, summed over its trace files, possibly in several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from tracekit.analysis.calls import process_ranks
from tracekit.analysis.facts import step_phases
from tracekit.analysis.idle_account._host_states import pairs_of, sampled
from tracekit.analysis.idle_account._idle_gaps import copying, last_to_work
from tracekit.analysis.idle_account._idle_pieces import (
    OwnPieces,
    own_pieces_in,
    with_last_gaps,
)
from tracekit.engine import launch_groups
from tracekit.model import Frames, Trace

_LENGTH = pl.col("end") - pl.col("start")
_WHY = ["cause", "rests_on", "queued"]
"""Columns on the cause of idle time; ``queued``: whether the late op had been launched."""
_GAP = pl.col("^gap$").cast(pl.Int64)
_BITS = 32
"""Bits of a gap's number within a part; the number of the part is above them."""


@dataclass(frozen=True)
class IdleSums:
    """Idle time of GPUs inside of time windows (such as steps), added up by keys and cause."""

    pieces: pl.DataFrame
    """The keys, ``process, device, cause, rests_on`` (evidence), ``queued`` (whether the late op,
    see `gaps_of`, was launched before the gap), ``idle_ns``, and ``outside_ns``, the part of
    ``idle_ns`` before a GPU's first op or after its last op."""
    gaps: pl.DataFrame
    """The keys and ``gaps``: number of gaps with idle time in the group."""
    longest: pl.DataFrame
    """The longest gaps of each trace file, split by cause and range, with sampled functions, and
    ``before_name, after_name, late_stage, late_iteration``; no rows unless asked for."""


def idle_sums(
    trace: Trace,
    windows: pl.DataFrame,
    keys: Sequence[str],
    *,
    whole: pl.DataFrame | None = None,
    longest: int = 0,
    of_ops: pl.DataFrame | None = None,
) -> IdleSums:
    """Sum the GPUs' idle time inside of windows by keys and cause, one trace file at a time.

    Parameters
    ----------
    windows
        ``process, device, iteration, start, end`` (ns).
    keys
        Columns to group by: ``rank``, ``phase``, ``range`` and columns of `idle_pieces`.
    whole
        Windows of GPUs; idle time outside of them counts as `outside_ns`. By default `windows`.
    longest
        Number of longest gaps whose pieces are returned.
    of_ops
        ``op`` and the columns for keys that are properties of a gap's late op (`gaps_of`).
    """
    ask = _IdleOfPart(tuple(keys), longest)
    ending = last_to_work(trace, windows)
    edges = (windows if whole is None else whole).group_by("device").agg(
        first=pl.col("start").min(), last=pl.col("end").max()
    )  # fmt: skip

    def work_on(part: Trace) -> partial[Frames]:
        frames = [of_part(trace, part, each) for each in (windows, edges)] + [ending]
        return partial(ask, part, *frames, *([] if of_ops is None else [part.own_ops(of_ops)]))

    found = of_parts(trace, work_on)
    last = with_last_gaps(found["last_pieces"], found["last"], found["blocks"])
    names = _raw(keys)
    pieces = pl.concat([found["sums"], _added(last, names)])
    gaps = pl.concat([found["gaps"], _gaps(last, names)])
    known = pl.concat([found["longest"], last.select(found["longest"].columns)])
    return IdleSums(_with_ranks(trace, pieces, keys), _with_ranks(trace, gaps, keys), known)


def of_parts(trace: Trace, work_on: Callable[[Trace], partial[Frames]]) -> Frames:
    """Compute tables on each part (one or some trace files) of a run, and concatenate them.

    `work_on` returns the function (without arguments) that computes a part's tables. Files of GPUs
    that copy to each other are joined into one part.
    """

    def found_in(together: Sequence[tuple[int, int]]) -> Frames:
        parts = trace.parts(with_paths=True, together=together)
        return _joined(trace.sums_of_parts([work_on(part) for part in parts]))

    found = found_in(())
    used = launch_groups(trace)["device"].unique()
    copies = found["copies"].filter(pl.col("other").is_in(used.implode()))
    # What a copy to another GPU holds up is known there.
    return found if copies.is_empty() else found_in(copies.rows())


def of_part(trace: Trace, part: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Drop the rows on GPUs of the run that are not in its `part` (some trace files)."""
    devices, listed = (each.read("devices").select("device") for each in (trace, part))
    others = devices.join(listed, on="device", how="anti")
    return rows.join(others, on="device", how="anti", maintain_order="left")


def _raw(keys: Sequence[str]) -> list[str]:
    """Return `keys`, ``rank`` replaced by ``process``: a single trace file shows no ranks."""
    return ["process" if key == "rank" else key for key in keys]


def _with_ranks(trace: Trace, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    if "rank" not in keys:
        return rows
    ranks = process_ranks(trace)["rank"]
    numbers = list(range(ranks.len()))
    rank = pl.col("process").replace_strict(numbers, ranks, default=None, return_dtype=ranks.dtype)
    return rows.with_columns(rank=rank)


def _joined(parts: Sequence[Mapping[str, pl.DataFrame]]) -> Frames:
    """Concatenate equally named tables of all parts, making gap numbers unique in the run."""
    return {
        name: pl.concat(
            part[name].with_columns(_GAP + (number << _BITS)) for number, part in enumerate(parts)
        )
        for name in parts[0]
    }


@dataclass(frozen=True)
class _IdleOfPart:
    """Sums the idle time of one part (some trace files) of a run by the columns `keys`."""

    keys: tuple[str, ...]
    longest: int

    def __call__(
        self,
        part: Trace,
        windows: pl.DataFrame,
        edges: pl.DataFrame,
        ending: pl.DataFrame,
        of_ops: pl.DataFrame | None = None,
    ) -> Frames:
        """Return sums of idle time; gaps, busy intervals and copies that other parts' sums need.

        `edges` has begin and end of each GPU's windows; `ending`, the GPUs that work until windows
        end.
        """
        found = own_pieces_in(part, windows, ending)
        if "range" in self.keys:
            found = found.with_ranges(part)
        pieces = found.pieces.join(edges, on="device", maintain_order="left")
        if "phase" in self.keys:
            phases = step_phases(part).select("process", "iteration", "phase")
            pieces = pieces.join(phases, on=["process", "iteration"], how="left")
        if of_ops is not None:
            late = found.gaps.select("gap", op="after").join(of_ops, on="op").drop("op")
            pieces = pieces.join(late, on="gap", how="left", maintain_order="left")
        is_last = pl.col("gap").is_in(found.last["gap"].implode())
        summable, last, names = pieces.filter(~is_last), pieces.filter(is_last), _raw(self.keys)
        return {
            "sums": _added(summable, names), "gaps": _gaps(summable, names),
            "longest": self._longest(part, found, summable) if self.longest else summable.clear(),
            "last_pieces": self._longest(part, found, last) if self.longest else last,
            "last": found.last, "blocks": found.blocks, "copies": copies_of(part),
        }  # fmt: skip

    def _longest(self, part: Trace, found: OwnPieces, pieces: pl.DataFrame) -> pl.DataFrame:
        """Return the longest gaps, split by cause and range, with samples and adjacent ops."""
        gaps = longest_gaps(pieces, self.longest)["gap"]
        chosen = replace(found, pieces=pieces.filter(pl.col("gap").is_in(gaps.implode())))
        around = found.gaps.filter(pl.col("gap").is_in(gaps.implode())).select(
            "gap", "before", "ended_by", late_stage="stage"
        )
        wanted = pl.concat([around["before"], around["ended_by"]]).drop_nulls().unique()
        name = pl.col("short_name").fill_null(pl.col("name")).cast(pl.String)
        names = (
            part["ops"].filter(pl.col("op").is_in(wanted.implode()))
            .select("op", late_iteration="iteration", after_name=name).collect()
        )  # fmt: skip
        before = names.select(before="op", before_name="after_name")
        known = around.join(before, on="before", how="left").join(
            names.rename({"op": "ended_by"}), on="ended_by", how="left"
        )
        with_causes = _with_samples(part, chosen.with_ranges(part))
        return with_causes.join(known.drop("before", "ended_by"), on="gap", maintain_order="left")


def _added(pieces: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    by = dict.fromkeys([*names, "process", "device", *_WHY])
    before = pl.min_horizontal("end", "first") - pl.col("start")
    after = pl.col("end") - pl.max_horizontal("start", "last")
    queued = pieces.with_columns(queued=pl.col("detail").is_not_null())
    return queued.group_by(*by).agg(
        idle_ns=_LENGTH.sum(), outside_ns=(before.clip(0) + after.clip(0)).sum()
    )


def _gaps(pieces: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    by = dict.fromkeys([*names, "process"])
    return pieces.group_by(*by).agg(gaps=pl.col("gap").n_unique().cast(pl.Int64))


def longest_gaps(pieces: pl.DataFrame, number: int) -> pl.DataFrame:
    """Return ``gap, idle_ns, start_ns, device`` of the `number` longest gaps, longest first."""
    lengths = pieces.group_by("gap").agg(
        idle_ns=_LENGTH.sum(), start_ns=pl.col("start").min(), device=pl.col("device").first()
    )
    return lengths.sort(
        "idle_ns", "start_ns", "device", "gap", descending=[True, False, False, False]
    ).head(number)  # fmt: skip


def _with_samples(trace: Trace, found: OwnPieces) -> pl.DataFrame:
    """Return idle intervals; a missing `detail` becomes the function with most CPU samples."""
    untold = pl.col("detail").is_null() & pl.col("cause").is_in(["between_steps", "host_delay"])
    met = sampled(trace, found.pieces.filter(untold), pairs_of(trace, found.gaps))
    most = (
        met.group_by("gap", "cause", "name").agg(number=pl.len())
        .with_columns(of=pl.col("number").sum().over("gap", "cause"))
        .sort("number", "name", descending=[True, False])
        .unique(["gap", "cause"], keep="first", maintain_order=True)
    )  # fmt: skip
    text = pl.format("{} of {} samples in {}", "number", "of", "name")
    ran = most.select("gap", "cause", executed=text)
    known = found.pieces.join(ran, on=["gap", "cause"], how="left", maintain_order="left")
    detail = pl.when(untold).then("executed").otherwise("detail")
    return known.with_columns(detail=detail).drop("executed")


def copies_of(part: Trace) -> pl.DataFrame:
    """Return ``device, other``: GPUs of this part that copy to or from GPUs of other parts."""
    ends = ["src_device", "dst_device"]
    seen = copying(part).unpivot(ends, index="device")
    others = seen.select("device", other="value").drop_nulls().unique()
    if others.is_empty():
        return others
    devices = part["ops"].select("device").unique().collect()["device"]
    return others.filter(~pl.col("other").is_in(devices.implode())).sort("device", "other")


def doubt_of_waiting(rests_on: str | None) -> str:
    """Return a caveat if ``waiting_call`` time is inferred from an earlier wait; else empty.

    `rests_on` names the evidence for this time, separated by commas.
    """
    after_waits = "waits" in (rests_on or "").split(", ")
    return "waiting_call includes late launches after a wait, which is inferred" * after_waits
