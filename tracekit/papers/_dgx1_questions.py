"""The questions of the DGX-1 study: each answered by a table and one sentence.

Published values are beside measured ones; published findings are checked. Every sentence is
derived from its table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tracekit.analysis.memory import memory_extra, memory_growth
from tracekit.analysis.studies import (
    Published,
    beside,
    overhead,
    scaling,
    study_stages,
    without_empty,
)
from tracekit.model import Answer
from tracekit.support.wording import note, text_of

_UNKNOWN = "an unknown number"


def number_of_gpus(number: object) -> str:
    """Return a GPU count as text, such as ``1 GPU`` or ``4 GPUs``."""
    return f"{number} GPU{'' if number == 1 else 's'}"


def number_of(value: object, form: str) -> str:
    """Return `value` formatted by `form`, such as ``{:.1f} %``; `an unknown number` for None."""
    return _UNKNOWN if value is None else form.format(value)


def ends(rows: pl.DataFrame, name: str, form: str) -> str:
    """Return the least and greatest value of column `name` as text, each with its configuration."""
    known = rows.drop_nulls(name).sort(name)
    if known.is_empty():
        return _UNKNOWN
    low, high = known[[0, -1]].rows(named=True)
    texts = [number_of(row[name], form) for row in (low, high)]
    if texts[0] == texts[1]:
        return texts[0]
    return f"{texts[0]}{_of(low)} to {texts[1]}{_of(high)}"


def _of(row: Mapping[str, object]) -> str:
    """Return the configuration in a row as text: network, method and batch size, where known."""
    words = [str(row[key]) for key in ("network", "method") if row.get(key) is not None]
    words += [f"batch {row['batch']}"] if row.get("batch") is not None else []
    return f" ({', '.join(words)})" if words else ""


def holds(values: pl.Series, claim: Callable[[pl.Series], bool]) -> bool | None:
    """Return whether the known values satisfy `claim` (a function); None if there are none."""
    known = values.drop_nulls()
    return bool(claim(known)) if known.len() else None


def _all_shown(overheads: pl.DataFrame, claim: pl.Expr) -> bool | None:
    """Test whether a claim is true of all rows; None if undecided or without rows.

    It is undecided if it is unknown for some rows, and false for none.
    """
    shown = overheads.select(said=claim)["said"]
    return shown.all(ignore_nulls=False) if shown.len() else None


COMMAND = "study dgx1"

_gpus, _batch = pl.col("gpus"), pl.col("batch")
_BESIDE = ("published", "relation", "error_percent", "within")
_KEY = ("network", "batch", "method", "gpus")
_MEMORY = ("network", "method", "batch")
_PUBLISHED = pl.col("published").alias("published_percent")
_COLLECTIVE = pl.col("method").is_in(["nccl", "gloo"])
"""Methods compared with P2P: NCCL, or Gloo on the CPU."""
_LACKS = {
    "memory": "recordings of the memory of several GPUs",
    "routes": "copies between GPUs",
    "methods": "runs with P2P and with NCCL (on the CPU Gloo) that are otherwise equal",
}
"""Key of a question -> the data that it requires, for questions that not all runs can answer."""
_SMALL = ("lenet", "alexnet")
"""The networks that the slides call small."""
_POINTS = 1.0
"""Percentage points within which shares count as equal."""
ALIKE = 20.0
"""Percent within which speedups are called similar; the slides give no number."""
_NOISE = 0.05
"""Largest part of a speedup that may be chance."""
# Of times from a table the overhead itself counts; of runs only what their steps show.
_OF_TABLE = pl.when(pl.col("steps").is_null()).then("overhead_percent")
_SLOWER = pl.coalesce("from_percent", _OF_TABLE) > 0
_FASTER = pl.coalesce("to_percent", _OF_TABLE) < 0
_OVERHEADS = {
    **dict.fromkeys(("network", "method", "scaling"), pl.String),
    **dict.fromkeys(("batch", "gpus", "time_ns", "baseline_ns"), pl.Int64),
    **dict.fromkeys(("overhead_percent", "from_percent", "to_percent"), pl.Float64),
    "steps": pl.Int64,
}


@dataclass(frozen=True)
class Measured:
    """Measured (or simulated) values from which the DGX-1 questions are answered."""

    study: pl.DataFrame
    """The table of a study, from `study`."""
    memory: pl.DataFrame
    """Memory of each GPU of each run, bytes, before and in training: ``network, method, batch,
    gpus, gpu, source, pre_bytes, training_bytes``."""
    routes: pl.DataFrame
    """Copies between GPUs by type of route: ``network, batch, gpus, method, route_type, transfers,
    bytes, busy_ns``."""
    published: Published
    """The published values."""

    @property
    def strong(self) -> pl.DataFrame:
        """The study's runs, without those that are only for weak scaling."""
        return self.study.filter((pl.col("scaling") != "weak").fill_null(value=True))

    @property
    def most(self) -> int:
        """The largest number of GPUs of any run in the study."""
        return max(self.study["gpus"].drop_nulls(), default=0)

    def epochs(self) -> pl.DataFrame:
        """Return epoch times for the published data set, and speedups over one GPU.

        The values come from `scaling`; configurations without a run on several GPUs are left out.
        """
        rows = scaling(self.strong, images=self.published.images).rows
        return rows.filter(pl.col("baseline_gpus") == 1, _gpus.max().over(_KEY[:3]) > 1)

    def overheads(self) -> pl.DataFrame:
        """Return how much longer steps take with NCCL (or Gloo) than with P2P, in percent.

        Only configurations with both methods have a row.
        """
        study = self.strong.filter((pl.col("method") == "p2p") | _COLLECTIVE)
        if study["method"].n_unique() < len({"p2p", "nccl"}):
            return pl.DataFrame(schema=_OVERHEADS)
        return overhead(study).rows.drop_nulls("overhead_percent")


def dgx1_questions(measured: Measured) -> dict[str, Answer]:
    """Return the answers: key of the question -> answer.

    The meta of an answer has the ``question``; ``headline``, the sentence that answers it; and
    ``claims``: published finding -> whether it is true here (None if unknown).
    """
    return {key: _asked(measured, key, *each) for key, each in QUESTIONS.items()}


def _asked(
    measured: Measured, key: str, question: str, ask: Callable[[Measured], Answer]
) -> Answer:
    answer = ask(measured)
    if answer.rows.is_empty():
        lacks = f"No run shows it: it takes {_LACKS[key]}." if key in _LACKS else "No run shows it."
        empty = {"question": question, "headline": lacks}
        return Answer(rows=answer.rows, meta=empty, command=COMMAND)
    return replace(answer, meta={"question": question, **answer.meta}, command=COMMAND)


def _verdict_row(
    title: str,
    headline: str,
    rows: pl.DataFrame,
    figure: str,
    *,
    readable: pl.DataFrame | None = None,
    claims: Mapping[str, bool | None] | None = None,
    more: Mapping[str, Any] | None = None,
    tables: Mapping[str, pl.DataFrame] | None = None,
) -> Answer:
    return Answer(
        rows=rows,
        meta={"headline": headline, "claims": claims or {}, **(more or {})},
        title=title,
        readable=readable,
        figures={"figure": figure},
        tables=tables or {},
    )


# -- the questions -----------------------------------------------------------------------------


def _scales(measured: Measured) -> Answer:
    rows = beside(measured.epochs(), measured.published.speedups, "speedup")
    several = rows.filter(_gpus > 1)
    headline = (
        f"On {number_of_gpus(measured.most)} training is "
        f"{ends(several.filter(_gpus == measured.most), 'speedup', '{:.2f}')} times as fast as on "
        f"one. {_agreement(several)}"
    )
    readable = without_empty(several.select(*_KEY, "speedup", "efficiency", *_BESIDE), _BESIDE)
    claims = {
        f"alexnet's speedup is like lenet's (taken as at most {ALIKE:.0f} % apart)": holds(
            _off_lenet(several), lambda percent: (percent <= ALIKE).all()
        )
    }
    return _verdict_row(
        "speedup and efficiency", headline, rows, "speedup", readable=readable, claims=claims,
        more={"mode": "strong"},
    )  # fmt: skip


def _off_lenet(rows: pl.DataFrame) -> pl.Series:
    """Return by how many percent alexnet's speedups differ from lenet's (absolute values)."""
    lenet, alexnet = (rows.filter(network=name).select(*_KEY[1:], "speedup") for name in _SMALL)
    both = alexnet.join(lenet, on=_KEY[1:], nulls_equal=True, suffix="_of_lenet")
    ratio = both["speedup"] / both["speedup_of_lenet"]
    return 100 * (ratio - 1).abs()


def _agreement(rows: pl.DataFrame) -> str:
    """Return a sentence on how far measured values are from published values and bounds."""
    errors, bounds = rows["error_percent"].drop_nulls().abs(), rows["within"].drop_nulls()
    parts = []
    if errors.len():
        parts.append(
            f"of published values {errors.len()} are known here, and missed by "
            f"{number_of(errors.mean(), '{:.1f} %')} in the mean and "
            f"{number_of(errors.max(), '{:.1f} %')} at most"
        )
    if bounds.len():
        parts.append(f"{bounds.sum()} of {bounds.len()} published bounds are met")
    text = "; ".join(parts) or "nothing was published for these configurations"
    return f"{text[0].upper()}{text[1:]}."


def _methods(measured: Measured) -> Answer:
    known = measured.published.overheads
    untold = known.with_columns(relation=pl.lit("?"))  # of how many GPUs they are
    rows = beside(measured.overheads(), untold, "overhead_percent").drop("error_percent", "within")
    faster = [
        f"{of_number.filter(_FASTER).height} of {of_number.height} on {number_of_gpus(number)}"
        for (number,), of_number in rows.sort("gpus").group_by("gpus", maintain_order=True)
    ]
    name = "NCCL" if "nccl" in rows["method"] else "Gloo"
    headline = (
        f"{name} is shown to take less time than P2P in {', '.join(faster)}; its time "
        f"differs from P2P's by {ends(rows, 'overhead_percent', '{:+.1f} %')}. Published of NCCL "
        f"are {ends(known, 'published', '{:+.1f} %')}, for an unknown number of GPUs."
    )
    readable = rows.select(
        *_KEY, "time_ns", "baseline_ns", "overhead_percent", "from_percent", "to_percent",
        _PUBLISHED,
    )  # fmt: skip
    slower = rows.filter(_gpus > 1).select(said=_SLOWER)["said"]
    claim = slower.any(ignore_nulls=False) if slower.len() else None
    return _verdict_row(
        f"{name} against P2P", headline, rows, "overheads", readable=readable,
        # What was published is of NCCL, whatever stands for it here.
        claims={"NCCL takes longer than P2P on several GPUs in some cases": claim}
        if name == "NCCL"
        else {},
        more={"baseline": "p2p"}, tables={"overheads": rows},
    )  # fmt: skip


def _network_size(measured: Measured) -> Answer:
    smallest, gpus = measured.strong["batch"].min(), number_of_gpus(measured.most)
    is_chosen = (_gpus == measured.most) & _batch.eq_missing(pl.lit(smallest, pl.Int64))
    study = measured.strong.filter(is_chosen)
    columns = (*_KEY, "step_ns", "fp_bp_ns", "wu_ns", "wu_exposed_ns")
    rows = study.select(*columns, wu_share=pl.col("wu_exposed_ns") / pl.col("step_ns"))
    rows = rows.sort("fp_bp_ns", "method", nulls_last=True)
    shown = rows.with_columns(ms=pl.col("fp_bp_ns") / 1e6, wu=100 * pl.col("wu_share"))
    batch = "unknown" if smallest is None else number_of(smallest, "{}")
    headline = (
        f"With batch {batch} on {gpus}, FP and BP of a step take {ends(shown, 'ms', '{:.2f} ms')}, "
        f"and what a step waits for its weight update is {ends(shown, 'wu', '{:.1f} %')} of it."
    )
    slower = measured.overheads().filter(is_chosen, method="nccl")
    is_small = pl.col("network").is_in(_SMALL)
    large, small = (slower.filter(some) for some in (~is_small, is_small))
    per = "step/process" if (study["basis"] == "host").any() else "step/GPU"
    claims = {
        f"on {gpus} large networks take less time with NCCL": _all_shown(large, _FASTER),
        f"on {gpus} lenet and alexnet take less time with P2P": _all_shown(small, _SLOWER),
    }
    return _verdict_row(
        "steps by network", headline, rows, "stages", claims=claims, more={"per": per},
        tables={"stages": _bars(study_stages(study))},
    )  # fmt: skip


def _bars(stages: pl.DataFrame) -> pl.DataFrame:
    """Return the rows for the figure of stages, one per bar.

    The column ``run`` is left out unless two rows agree in network, batch, GPUs, method and stage.
    """
    bars = stages.drop("run")
    is_told = not bars.select("network", "batch", "gpus", "method", "stage").is_duplicated().any()
    return bars if is_told else stages


def _batch_size(measured: Measured) -> Answer:
    epochs = scaling(measured.strong, images=measured.published.images).rows
    epochs = epochs.select(*_KEY, "time_ns").drop_nulls("batch").sort(_KEY)
    by = ["network", "method", "gpus"]
    smallest, first = _batch.min().over(by), pl.col("time_ns").sort_by("batch").first().over(by)
    rows = epochs.with_columns(
        change_percent=100 * (pl.col("time_ns") / first - 1),
        proportional_percent=100 * (smallest / _batch - 1),
    ).filter(_batch > smallest)
    largest = rows.filter(_batch.max() == _batch)
    ideal = number_of(largest["proportional_percent"].min(), "{:+.1f} %")
    headline = (
        f"The time of an epoch with batch {number_of(rows['batch'].max(), '{}')} differs from that "
        f"with batch {number_of(epochs['batch'].min(), '{}')} by "
        f"{ends(largest, 'change_percent', '{:+.1f} %')}; in proportion it would by {ideal}."
    )
    apart = (rows["change_percent"] - rows["proportional_percent"]).abs()
    claims = {
        f"the time falls in proportion to the batch (taken as {_POINTS:.0f} point)": holds(
            apart, lambda points: (points <= _POINTS).all()
        )
    }
    return _verdict_row("epochs by batch", headline, rows, "batch effect", claims=claims)


def _stages(measured: Measured) -> Answer:
    rows = measured.epochs()
    readable = rows.filter(_gpus > 1).select(*_KEY, "speedup_fp_bp", "speedup_wu")
    two = readable.filter(_gpus == 2)  # noqa: PLR2004 - the slides tell of the step from 1 to 2
    small = two.filter(pl.col("network").is_in(_SMALL))
    most = readable.filter(_gpus == measured.most)
    headline = (
        f"On two GPUs FP and BP of an epoch are {ends(two, 'speedup_fp_bp', '{:.2f}')} times as "
        f"fast as on one; on {number_of_gpus(measured.most)} the weight update is "
        f"{ends(most, 'speedup_wu', '{:.2f}')} times as fast as on one."
    )
    claims = {
        f"FP and BP of lenet and alexnet are more than twice (taken as {2 + _NOISE}) as fast on "
        "two GPUs": holds(small["speedup_fp_bp"], lambda times: (times > 2 + _NOISE).all())
    }
    return _verdict_row(
        "speedup of stages", headline, rows, "stage speedup", readable=readable, claims=claims
    )


def _memory(measured: Measured) -> Answer:
    rows, known = _memory_rows(measured), measured.published
    headline = (
        f"GPU 0 uses {ends(rows, 'extra_percent', '{:.1f} %')} more than the others (published: "
        f"{ends(known.memory_extra, 'published', '{:.1f} %')}); larger batches take up to "
        f"{number_of(rows['increase_percent'].max(), '{:.1f} %')} more than the smallest "
        f"(published: {number_of(known.memory_growth['published'].max(), '{:.1f} %')})."
    )
    most = known.bounds["methods_memory"]
    claims = {
        f"GPU 0 uses more than the others (taken as {_POINTS:.0f} %)": holds(
            rows["extra_percent"], lambda percent: (percent > _POINTS).all()
        ),
        f"memory with P2P and with NCCL is at most {most:.0f} % apart": holds(
            _apart(rows), lambda percent: (percent <= most).all()
        ),
    }
    readable = rows.select(
        *_MEMORY, "root_bytes", "extra_percent", _PUBLISHED, "increase_percent",
        "published_increase_percent",
    )  # fmt: skip
    found = _verdict_row(
        "memory of GPU 0", headline, rows, "memory extra", readable=readable, claims=claims,
        more={"peak_of": "GPU 0 in training"},
    )  # fmt: skip
    return replace(found, source={"root": 0, "capacity": None})


def _memory_rows(measured: Measured) -> pl.DataFrame:
    """Return the memory of GPU 0 with the most GPUs, by network, method and batch.

    ``extra_percent``: by how much it exceeds the median of the other GPUs; ``increase_percent``:
    growth from the smallest batch. Published values are beside them.
    """
    points, known = measured.memory.filter(_gpus == measured.most).drop("gpus"), measured.published
    growth = memory_growth(points, by=_MEMORY[:2]).select(*_MEMORY, "increase_percent")
    grown = beside(growth, known.memory_growth, "increase_percent").select(
        *_MEMORY, "increase_percent", published_increase_percent="published"
    )
    extra = memory_extra(points, by=_MEMORY).drop_nulls("extra_percent")
    extra = beside(extra, known.memory_extra, "extra_percent")
    return extra.join(grown, on=_MEMORY, how="left", nulls_equal=True, maintain_order="left")


def _apart(rows: pl.DataFrame) -> pl.Series:
    """Return by how many percent GPU 0's memory differs between methods, per network and batch."""
    used = pl.col("root_bytes")
    apart = 100 * (used.max() / used.min() - 1)
    pairs = rows.group_by("network", "batch").agg(apart=apart, both=pl.len())
    return pairs.filter(pl.col("both") > 1)["apart"]


def _weak(measured: Measured) -> Answer:
    found = scaling(measured.study, mode="weak", images=measured.published.images).rows
    rows = found.filter(pl.col("baseline_gpus") == 1).drop_nulls("reduction_percent")
    most = measured.published.bounds["weak_reduction"]
    headline = (
        "For each data set weak scaling takes "
        f"{ends(rows, 'reduction_percent', '{:.1f} %')} less time than strong scaling does "
        f"(published: at most {most:.0f} %)."
    )
    claims = {
        f"weak scaling saves time, at most {most:.0f} % (taken as {_POINTS:.0f} % or more)": holds(
            rows["reduction_percent"], lambda percent: percent.is_between(_POINTS, most).all()
        )
    }
    readable = rows.select(*_KEY, "speedup", "efficiency", "reduction_percent")
    return _verdict_row(
        "weak scaling", headline, rows, "speedup", readable=readable, claims=claims,
        more={"mode": "weak"},
    )  # fmt: skip


def _routes(measured: Measured) -> Answer:
    of_run, gpus = ["network", "batch", "method"], number_of_gpus(measured.most)
    rows = measured.routes.filter(_gpus == measured.most).with_columns(
        achieved_gb_s=pl.col("bytes") / pl.col("busy_ns"),
        bytes_share=pl.col("bytes") / pl.col("bytes").sum().over(of_run),
        time_share=pl.col("busy_ns") / pl.col("busy_ns").sum().over(of_run),
    )
    rows = rows.sort(*of_run, "route_type")
    near, far = rows.filter(route_type="nvlink"), rows.filter(pl.col("route_type") != "nvlink")
    far = far.with_columns(pl.col("bytes_share", "time_share") * 100)
    against = measured.overheads().filter(_gpus == measured.most)
    change = ends(against, "overhead_percent", "{:+.1f} %")
    loss = f"the time of NCCL differs from that of P2P by {change}"
    headline = (
        f"On {gpus} {'NCCL and P2P are not both known' if against.is_empty() else loss}. Of the "
        f"bytes that P2P copies {ends(far, 'bytes_share', '{:.0f} %')} go where no NVLink does: at "
        f"{ends(far, 'achieved_gb_s', '{:.1f} GB/s')} against "
        f"{ends(near, 'achieved_gb_s', '{:.1f} GB/s')} over NVLinks they take "
        f"{ends(far, 'time_share', '{:.0f} %')} of the time of copies."
    )
    lost = _all_shown(against, _FASTER)
    return _verdict_row(
        "copies between GPUs by kind of route", headline, rows, "route times",
        claims={f"P2P takes longer than NCCL on {gpus}": lost},
    )  # fmt: skip


QUESTIONS: Mapping[str, tuple[str, Callable[[Measured], Answer]]] = {
    "scaling": ("Do the workloads scale with the number of GPUs?", _scales),
    "methods": ("Does NCCL always beat P2P?", _methods),
    "networks": ("What does the size of the network change?", _network_size),
    "batches": ("What does the size of the batch change?", _batch_size),
    "stages": ("How do the stages of training scale?", _stages),
    "memory": ("How much memory does training take, by network and batch?", _memory),
    "weak": ("What does weak scaling change against strong scaling?", _weak),
    "routes": ("Why does P2P lose on 8 GPUs?", _routes),
}
"""Key -> question and function that answers it, in the order of the slides."""


note("of_runs")(lambda text: [f"of {text_of(text)}"])
_HOLDS = {True: "so it is here", False: "here it is not", None: "unknown here"}
note("claims")(
    lambda claims: [
        f"published: {text_of(claim)}; {_HOLDS[holds]}" for claim, holds in claims.items()
    ]
)
