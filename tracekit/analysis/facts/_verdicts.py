"""Verdicts on a run (what its processes do, whether it is a pipeline), and its summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.analysis.calls import collective_calls
from tracekit.engine import StageTally, has_ops, iterations_in, kept_sums, sum_in
from tracekit.model import KERNEL_KINDS, STAGE, Trace
from tracekit.support.wording import count, note, percent, shares_text, text_of

_STRONG = ("nvtx", "process_range", "thread_name", "backward_thread", "autograd", "structure")
"""Sources that know a pass by more than names of kernels and kinds of copies."""
_METHODS = {
    "threads": "stages by threads",
    "order": "stages estimated from order",
    "refused": "stages refused",
    "none": "no stages",
}
_NS_PER_MS = 1_000_000
_MUCH = 0.1
"""Share of GPU time above which a stage on a weak source of evidence is reported."""
WAITING = r"(?i)(^|[^a-z])(send|recv|receive|isend|irecv)([^a-z]|$)"
"""Pattern of ranges on the host in which a pipeline stage sends, or waits for its input."""

_PASSES = ("FP", "BP")
_COPIES = ("p2p", "staged")
_PAIR = 2
_SENDS = r"(?i)send|recv"
_GROUPS = ("all_to_all", "gather", "scatter")
"""Collectives that NCCL runs as sends and receives of all ranks."""
_MICRO_BATCH = r"(?i)micro[ _-]?batch[ _-]?(\d+)"


def verdict_meta(trace: Trace) -> dict[str, Any]:
    """Return the metadata on what a run's processes do, which every answer carries.

    Returns
    -------
    ``verdict``: verdict -> number of processes that run ops; absent if no verdict is stored.
    ``given``: present if the user gave the verdict. ``cut``: where GPU work is cut off by the
    recording (`begin`, `end` or `both`), if at all. ``weak``: stages that one weak source of
    evidence decided for more than a tenth of GPU time, as ``stage, source, share``.
    """
    verdicts = _working(trace)
    counts = verdicts["verdict"].cast(pl.String).value_counts(sort=True)
    cut = set(verdicts["cut"].drop_nulls())
    weak = _weak(trace, verdicts)
    return {
        **({"verdict": dict(counts.iter_rows())} if counts.height else {}),
        **({"given": True} if verdicts["given"].any() else {}),
        **({"cut": cut.pop() if len(cut) == 1 else "both"} if cut else {}),
        **({"weak": weak} if weak else {}),
    }


def verdict_evidence(trace: Trace) -> list[str]:
    """Return, in sentences, the evidence for the verdict and the stages of each process.

    A sentence of several processes comes once, with their number.
    """
    named = trace.read("verdicts").join(
        trace.read("processes").select("process", "pid"), on="process", how="left"
    )
    assumptions = trace.read("assumptions")
    found: dict[str, list[int]] = {}
    for each in named.sort("process").to_dicts():
        pid = each["process"] if each["pid"] is None else each["pid"]
        assumed = assumptions.filter(process=each["process"]).to_dicts()
        for text in (*_worded(each), *map(_assumed, assumed)):
            found.setdefault(text, []).append(pid)
    return [f"{_whose(pids, named.height)}{text}" for text, pids in found.items()]


def _whose(pids: Sequence[int], processes: int) -> str:
    """Return the beginning of a sentence: which of the run's processes it is about."""
    if processes == 1:
        return ""
    if len(pids) == 1:
        return f"process {pids[0]}: "
    which = "" if len(pids) == processes else f" of {processes:,} processes, such as {pids[0]}"
    return f"each of {len(pids):,}{which or ' processes'}: "


def _assumed(each: Mapping[str, Any]) -> str:
    """Return a sentence: an assumption about stages, its test's result, the GPU time in doubt."""
    result = {"untested": "cannot be tested here"}.get(each["result"], each["result"])
    doubt = "doubt unknown"
    if each["doubt_ns"] is not None:
        doubt = f"doubt {each['doubt_ns'] / _NS_PER_MS:,.3f} ms"
    return f"assumption: {each['assumption']}: {result}, {doubt} ({each['said']})"


def _worded(each: Mapping[str, Any]) -> Iterator[str]:
    """Yield the evidence for one row of the table ``verdicts`` (one process) in sentences."""
    as_given = " (as given)" if each["given"] else ""
    yield f"{each['verdict']}{as_given}: {each['evidence']}"
    if each["structure_evidence"]:
        yield f"structure: {_METHODS[each['structure']]}: {each['structure_evidence']}"
    if each["gaps"]:
        yield f"gaps between backward passes: {each['usual_gaps']:,} of {each['gaps']:,} usual"
    if each["doubt_ns"] is not None:
        doubt = f"{each['doubt_ns'] / _NS_PER_MS:,.3f} ms"
        yield f"busy time on one or the other side of a cut between stages: {doubt}"
    if each["iterations"]:
        yield (
            f"iterations: {each['iterations']:,} known, {each['with_work']:,} with GPU work, "
            f"{each['whole']:,} complete"
        )
    if each["contradictions"]:
        yield f"contradicted: {each['contradictions']}"


def _working(trace: Trace) -> pl.DataFrame:
    """Return the rows ``verdicts`` of processes that ran GPU ops; of all processes if none did."""
    verdicts = trace.read("verdicts")
    working = verdicts.join(trace.read("opinions"), on="process", how="semi")
    return working if working.height else verdicts


def _weak(trace: Trace, verdicts: pl.DataFrame) -> list[dict[str, Any]]:
    decided = trace.once(_decided)
    total = int(decided["total_ns"].sum())
    estimated = verdicts.filter((pl.col("structure") == "order") & pl.col("decides"))["process"]
    source = pl.col("stage_source").cast(pl.String)
    is_weak = source.is_in(["kernel_name", "copy_kind"]) | (
        (source == "structure") & pl.col("process").is_in(estimated.implode())
    )
    sums = (
        decided.filter(is_weak)
        .group_by(pl.col("stage").cast(pl.String), source)
        .agg(pl.col("total_ns").sum())
        .filter(pl.col("total_ns") > _MUCH * total)
        .sort("total_ns", descending=True)
    )
    return [
        {"stage": stage, "source": of, "share": length / total}
        for stage, of, length in sums.iter_rows()
    ]


def _decided(trace: Trace) -> pl.DataFrame:
    """Return GPU time by process, stage, and the source of evidence by which the stage was chosen.

    Runs ingested by earlier versions lack the table ``opinions``; then ``ops`` is summed instead.
    """
    opinions = trace.read("opinions")
    if opinions.is_empty():
        length = (pl.col("end") - pl.col("start")).sum().alias("total_ns")
        sums = trace["ops"].group_by("process", "stage", "stage_source").agg(length)
        return sums.collect()
    source, other = (pl.col(name).cast(pl.String) for name in ("stage_source", "other_source"))
    return opinions.filter(source == other)


def unknown_passes(trace: Trace) -> str | None:
    """Return why the rest of a step besides FP and BP cannot count as WU; None if it can.

    The rest counts as WU if ranges, threads, autograd or the repeating structure of ops identify
    both FP and BP in each training process.
    """
    decided = trace.once(_decided)
    verdicts = _working(trace)
    trains = verdicts.filter(pl.col("verdict") == "training")["process"]
    if verdicts.is_empty():
        trains = decided["process"].unique()
    if trains.is_empty():
        return "no process is known to train"
    strong = decided.filter(pl.col("stage_source").cast(pl.String).is_in(_STRONG))
    for stage, name in (("FP", "forward"), ("BP", "backward")):
        known = strong.filter(pl.col("stage") == stage)["process"]
        if not trains.is_in(known.implode()).all():
            return f"the {name} pass is not known by ranges, threads or structure"
    return None


def confusion(trace: Trace) -> pl.DataFrame:
    """Compare the final stage of ops with the stage that each source of evidence gives them.

    Returns
    -------
    ``stage, stage_source`` (the deciding source), ``other_source, other_stage`` (the stage of the
    same ops by another source), ``agrees``, ``ops``, ``total_ns`` (sum of durations) and ``share``
    of the durations of all ops. Rows with ``other_source`` equal to ``stage_source`` contain each
    op once.
    """
    opinions = trace.read("opinions").with_columns(pl.selectors.enum().cast(pl.String))
    keys = ("stage", "stage_source", "other_source", "other_stage")
    total = int(trace.once(_decided)["total_ns"].sum())
    sums = opinions.group_by(keys).agg(pl.col("ops", "total_ns").sum())
    return sums.select(
        *keys,
        agrees=pl.col("stage") == pl.col("other_stage"),
        ops="ops",
        total_ns="total_ns",
        share=pl.col("total_ns") / total if total else None,
    ).sort("total_ns", *keys, descending=[True, *(False for _ in keys)])


def is_pipeline(trace: Trace, waiting: str = WAITING) -> bool:
    """Test whether a run is pipeline-parallel: has micro-batches, or sends between stages.

    `waiting` matches names of ranges in which a stage sends or waits.
    """
    counted = counted_micro_batches(trace) is not None
    return counted or _hands_on(trace, waiting, is_gpu=has_ops(trace))


def _hands_on(trace: Trace, waiting: str, *, is_gpu: bool) -> bool:
    """Test if FP and BP exchange data with another pipeline stage: NCCL sends or copies.

    Without GPU work (`is_gpu`), the test is whether a name of an NVTX range matches `waiting`.
    """
    if not is_gpu:
        talks = trace["ranges"].filter(pl.col("name").cast(pl.String).str.contains(waiting))
        return not talks.head(1).collect().is_empty()
    passes = trace["ops"].filter(pl.col("stage").is_in(_PASSES))
    copies = passes.filter(pl.col("kind").is_in(_COPIES)).head(1).collect()
    return _sends(trace, passes) or not copies.is_empty()


def is_message() -> pl.Expr:
    """Return an expression that is true for sends and receives of at most two known participants.

    A ``send_recv`` with more participants is an exchange of all with all, as in an all-to-all.
    """
    members = pl.struct("process", "device").n_unique().over("match")
    meets_several = pl.col("match").is_not_null() & (members > _PAIR)
    return (pl.col("collective").cast(pl.String) == "send_recv") & ~meets_several


def _sends(trace: Trace, passes: pl.LazyFrame) -> bool:
    """Test if ops of FP and BP (`passes`) have NCCL sends or receives outside of collectives."""
    collectives = passes.filter(pl.col("kind") == "collective").select("op", "name").collect()
    sending = collectives.filter(pl.col("name").cast(pl.String).str.contains(_SENDS))
    if sending.is_empty():
        return False
    calls = collective_calls(trace).select("op", "match", "process", "device", "collective")
    names = pl.col("collective").cast(pl.String)
    others = calls.filter(~is_message(), names.is_in([*_GROUPS, "send_recv"]))
    return not sending.join(others, on="op", how="anti").is_empty()


def counted_micro_batches(trace: Trace) -> int | None:
    """Return how many different micro-batch numbers occur in names of forward ranges; or None."""
    number = pl.col("name").cast(pl.String).str.extract(_MICRO_BATCH)
    forward = trace["ranges"].filter(pl.col("stage") == "FP").select(number)
    found = forward.select(pl.col("name").drop_nulls().n_unique()).collect().item()
    return int(found) or None


# -- summary of a run in a few numbers ---------------------------------------------------------


Number = int | float | str | None


def summarise(trace: Trace) -> dict[str, Number]:
    """Return counts of a run's contents, and the shares of ops with known launch and stage.

    Returns
    -------
    ``devices`` (that ran an op), ``processes``, ``ops``, ``kernels``, ``ranges``, ``iterations``;
    ``gpus``, their names; ``verdict``, such as training or inference; ``launched``, the share of
    ops whose launching call is known, and ``coverage``, the share of GPU busy time whose stage is
    known (null without ops).
    """
    ops = _counts(trace)
    devices = trace.read("devices").filter("active")
    names = devices["name"].drop_nulls().unique(maintain_order=True).to_list()
    return {
        "devices": devices.height,
        "gpus": ", ".join(names) or None,
        "processes": trace.height("processes"),
        "ops": ops["ops"],
        "kernels": ops["kernels"],
        "ranges": trace.height("ranges"),
        "iterations": iterations_in(trace, 0),
        "verdict": _verdict(trace),
        "launched": ops["launched"] / ops["ops"] if ops["ops"] else None,
        "coverage": _coverage(trace) if ops["unknown"] else 1.0 if ops["ops"] else None,
    }


def _counts(trace: Trace) -> dict[str, int]:
    """Count ops: all, kernels, those with a launching call, and those of unknown stage."""
    kept = kept_sums(trace)
    if kept is not None:
        sums = kept.groups.select(pl.col("ops", "kernels", "launched").sum()).row(0, named=True)
        unknown = kept.sources.filter(pl.col("stage_source") == "none")
        return {**sums, "unknown": int(unknown["ops"].sum())}
    counts = trace["ops"].select(
        ops=pl.len(),
        kernels=pl.col("kind").is_in(list(KERNEL_KINDS)).sum(),
        launched=pl.col("call").count(),
        unknown=(pl.col("stage_source") == "none").sum(),
    )
    return counts.collect(engine="streaming").row(0, named=True)


def _verdict(trace: Trace) -> str | None:
    """Return text: the verdicts, the evidence if there is only one, and where GPU work is cut."""
    meta = verdict_meta(trace)
    if "verdict" not in meta:
        return None
    verdicts = ", ".join(meta["verdict"])
    evidence = trace.read("verdicts")["evidence"].unique(maintain_order=True)
    why = f" ({evidence[0]})" if len(evidence) == 1 else ""
    cut = f", may be cut: {meta['cut']}" if "cut" in meta else ""
    as_given = ", as given" if meta.get("given") else ""
    return f"{verdicts}{as_given}{cut}{why}"


def _coverage(trace: Trace) -> float | None:
    """Return the share of the GPUs' busy time in which an op runs whose stage is known."""
    ops = trace["ops"].select("device", "start", "end", stage=_KNOWN)
    sums = sum_in(trace.with_lazy({"ops": ops}), StageTally(of_stages_alone=True), None)
    busy = int(sums.groups["busy_ns"].sum())
    known = int(sums.stages.filter(stage="FP")["busy_ns"].sum())
    return known / busy if busy else None


_KNOWN = (
    pl.when(pl.col("stage_source").cast(pl.String) == "none")
    .then(pl.lit("OTHER"))
    .otherwise(pl.lit("FP"))
    .cast(STAGE)
)
"""One stage for ops whose stage is known, and another for the rest, so that tallies add them up."""


def identify(trace: Trace) -> dict[str, str | None]:
    """Return file, format, profiler version and host of a run's trace files.

    Returns
    -------
    ``file``, ``format``, ``schema_version``, ``product`` and ``host``. Distinct values of several
    files are listed once; null if no file states one.
    """
    reports = trace.read("reports")
    return {
        name: ", ".join(reports[name].drop_nulls().unique(maintain_order=True).to_list()) or None
        for name in ("file", "format", "schema_version", "product", "host")
    }


_WEAK = {
    "kernel_name": "names of kernels alone",
    "copy_kind": "kinds of copies alone",
    "structure": "the order of launches, an estimate",
}
_ENDS = {"begin": "its beginning", "end": "its end", "both": "its beginning and its end"}


note("launched")(
    lambda share: [
        f"launching call known of {'an unknown share' if share is None else percent(share)} of ops"
    ]
)


@note("verdict")
def _verdict_note(verdicts: Mapping[str, int]) -> list[str]:
    several = sum(verdicts.values()) > 1
    texts = [
        f"{text_of(verdict)} ({count(number, 'process')})" if several else text_of(verdict)
        for verdict, number in verdicts.items()
    ]
    return [f"verdict: {', '.join(texts)}"] if texts else []


@note("verdicts")
def verdicts_note(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note on what the runs' processes do; empty if every process is in training."""
    if all(set(each.get("verdict", ())) <= {"training"} for each in runs.values()):
        return []
    worded = [
        f"{text_of(name)} {', '.join(map(text_of, each.get('verdict', ()))) or 'unknown'}"
        for name, each in runs.items()
    ]
    return [f"verdict: {'; '.join(worded)}"]


note("weak")(
    lambda stages: [
        f"weak evidence: {text_of(each['stage'])} rests on "
        f"{_WEAK.get(each['source'], text_of(each['source']))} for {percent(each['share'])} of GPU "
        "time"
        for each in stages
    ]
)
note("given")(lambda is_given: ["that verdict was given, not found"] if is_given else [])
note("cut")(lambda end: [f"the recording of GPU work may lack {_ENDS[end]}"])
note("coverage")(lambda shares: [f"stages known by: {shares_text(shares)} of busy time"])
