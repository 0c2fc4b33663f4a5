"""Section on the verdict of a run: three sentences and five key values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import polars as pl
from markupsafe import Markup

from tracekit.analysis.idle_account import CAUSES, doubt_of_waiting
from tracekit.analysis.statistics import before_a_short_end
from tracekit.errors import MissingDataError
from tracekit.present import count, duration, percent
from tracekit.present.pages import fragment, joined
from tracekit.report._subject import Subject

_PARTS = {"wu_exposed_ns": "weight update", "io_exposed_ns": "input", "me_exposed_ns": "evaluation"}
_LEAST = 0.005
_MOVES = 0.9
"""A step is named if without it the mean falls to this share or less."""
_MOST_KINDS = 3
_DOES = {
    "compute": "computing", "collective": "collectives", "p2p": "copies between GPUs",
    "staged": "copies between GPUs through the host", "h2d": "copies from the host",
    "d2h": "copies to the host", "d2d": "copies within a GPU", "memset": "fills",
    "h2h": "copies on the host", "graph": "CUDA graphs", "unknown": "copies of unknown direction",
}  # fmt: skip
"""Kinds of ops in words."""


class Tile(NamedTuple):
    """A key value at the top of the report, as printed; `raw` is the number that JSON has."""

    name: str
    label: str
    value: str
    detail: str
    raw: float | int | None = None


def verdict(subject: Subject) -> Markup:
    """State how long a step takes, in which stages, and why GPUs are idle."""
    facts = subject.close.facts
    if facts["step_ns"] is None:
        return _without_steps(subject)
    return joined(
        fragment("paragraphs", list(_sentences(subject, facts)), "lead"),
        fragment("tiles", list(_tiles(subject, facts))),
        fragment("notes", [f"Warning: {text}" for text in subject.run.warnings]),
    )


def _sentences(subject: Subject, facts: Mapping[str, Any]) -> Iterator[str]:
    where = count(facts["devices"], "process" if facts["basis"] == "host" else "GPU")
    step, steps = facts["step_ns"], count(facts["iterations"], "step")
    if kinds := subject.close.of_kinds:
        yield (
            f"Steps are of several kinds: {kinds} (medians); the mean of all {steps} on {where} is "
            f"{duration(step)}."
        )
    elif facts["iterations"] == 1:
        yield f"The only step takes {duration(step)} on {where}."
    else:
        yield f"A step takes {duration(step)} in the mean of {steps} on {where} ({_spread(facts)})."
        yield from _without_longest(subject)
    parts = [(_passes(subject, facts), facts["fp_bp_ns"])]
    parts += [(name, facts[key]) for key, name in _PARTS.items()]
    texts = [
        f"{percent(length / step)} {name}"
        for name, length in parts
        if length is not None and length / step >= _LEAST
    ]
    yield f"{_listed(texts)}{_hidden(facts)}."
    yield _idle_sentence(subject, facts)


def _without_longest(subject: Subject) -> Iterator[str]:
    """Yield a note on cold steps, on the mean without the longest step, or on a short last step."""
    steps = subject.close.lengths
    lengths = steps["step_ns"]
    cold, longest = subject.close.cold.steps, lengths.arg_max()
    if cold:
        first, is_out = ("one", "is") if cold == 1 else (f"{cold:,}", "are")
        mean = float(lengths[:cold].mean())  # type: ignore[arg-type]
        yield (
            f"The first {first}, which took far longer ({duration(mean)}), {is_out} left out of "
            f"numbers per step; sums over the recording include {'it' if cold == 1 else 'them'}."
        )
    elif longest is not None and len(lengths) > 1:
        others = (float(lengths.sum()) - lengths[longest]) / (len(lengths) - 1)
        if others <= _MOVES * float(lengths.mean()):  # type: ignore[arg-type]
            yield (
                f"One of them, step {steps['iteration'][longest]}, takes "
                f"{duration(lengths[longest])}; the mean of the others is {duration(others)}."
            )
            return
        before = before_a_short_end(lengths.to_list())
        if before is not None:
            yield (
                f"The last one, {duration(lengths[-1])}, ends with its own GPU work; the mean of "
                f"the others is {duration(before)}."
            )


def _passes(subject: Subject, facts: Mapping[str, Any]) -> str:
    """Name the passes in the run: inference has forward passes only."""
    has_backward = facts["basis"] == "host" or "BP" in subject.run.breakdown(by="stage")["stage"]
    return "the forward and backward passes" if has_backward else "the forward pass"


def _listed(shares: list[str]) -> str:
    if not shares:
        return "No stage is known"
    first, *others = shares
    number, _, name = first.partition(" % ")
    return ", ".join([f"Of the mean step {number} % is {name}", *others])


def _hidden(facts: Mapping[str, Any]) -> str:
    hidden = (facts["wu_ns"] or 0) - (facts["wu_exposed_ns"] or 0)
    if hidden / facts["step_ns"] < _LEAST:
        return ""
    return f"; {duration(hidden)} more of the weight update hide behind other stages"


def _idle_sentence(subject: Subject, facts: Mapping[str, Any]) -> str:
    idle = _idle(facts)
    share = percent(idle / facts["step_ns"])
    sentence = f"Nothing runs for {share} of it"
    if facts["basis"] == "host":
        sentence = f"none of a stage is open for {share} of a step"
        return f"These are NVTX ranges on the host, as no GPU work was recorded; {sentence}."
    causes = subject.close.idle.rows.filter(pl.col("step_ns") > 0).sort(-pl.col("step_ns"))
    outside = subject.close.idle.meta.get("step_outside_window_ns", 0)
    length, because = outside, " before or after a GPU's own ops"  # which no row of the window has
    if not causes.is_empty() and causes["step_ns"][0] >= outside:
        cause, length, rests_on = causes.select("cause", "step_ns", "rests_on").row(0)
        because = f": {_because(cause, rests_on)}"
    if not length:
        return f"{sentence}."
    return f"{sentence}, the longest part ({duration(length)} of a step){because}."


def _because(cause: str, rests_on: str | None) -> str:
    """Return an idle cause in words, with its name, and a doubt if evidence `rests_on` is weak."""
    words = CAUSES[cause]
    doubt = doubt_of_waiting(rests_on)
    words = words if cause in words else f"{words} ({cause})"
    return f"{words}; {doubt}" if doubt else words


def _spread(facts: Mapping[str, Any]) -> str:
    """Return a sentence on the variation of step times."""
    if facts["iterations"] == 1:
        return "one step, no spread"
    ends = (f"{name} {duration(facts[f'step_{key}_ns'])}"
            for key, name in (("p5", "p5"), ("p50", "median"), ("p95", "p95")))  # fmt: skip
    return ", ".join(ends)


def _idle(facts: Mapping[str, Any]) -> float:
    return float(facts["idle_ns"] + facts["between_steps_ns"])


def _tiles(subject: Subject, facts: Mapping[str, Any]) -> Iterator[Tile]:
    step, idle = facts["step_ns"], _idle(facts)
    yield Tile("step_ns", "Step, mean", duration(step), subject.close.of_kinds or _spread(facts),
               step)  # fmt: skip
    if facts["basis"] == "host":
        yield from (
            Tile(name, label, "unknown", "no GPU work was recorded")
            for name, label in (("busy", "GPU busy"), ("communication", "Exposed communication"))
        )
    else:
        busy = step - idle
        does = _does(_kinds_in_steps(subject))
        detail = f"{duration(busy)} of the mean step" + f": {does}" * bool(does)
        yield Tile("busy_share", "GPU busy", percent(busy / step), detail, busy / step)
        yield _communication(subject)
    yield Tile("idle_ns", "Idle", duration(idle), f"{percent(idle / step)} of the mean step", idle)
    yield _rate(facts)


def _kinds_in_steps(subject: Subject) -> pl.DataFrame:
    """Return ``kind, busy_ns, share``: busy time by kind of op, and its share of step time."""
    kinds, steps = subject.close.work
    return kinds.with_columns(share=pl.col("busy_ns") / float(steps["step_ns"].sum()))


def _does(kinds: pl.DataFrame) -> str:
    """Name the kinds of ops that take most time; several may run at once."""
    some = kinds.filter(pl.col("share") >= _LEAST)
    longest = some.sort(-pl.col("busy_ns")).head(_MOST_KINDS).select("kind", "share").iter_rows()
    return ", ".join(f"{_DOES[kind]} {percent(share)}" for kind, share in longest)


def _communication(subject: Subject, of: str = "of a step") -> Tile:
    found = subject.close.work.communication
    exposed, all_of_it, whole = (
        float(found[name].sum()) for name in ("exposed_ns", "communication_ns", "step_ns")
    )
    label = "Exposed communication"
    if not all_of_it:
        return Tile("communication_share", label, "none", "nothing between GPUs was recorded", 0.0)
    detail = (
        f"{duration(exposed / found.height)} {of}; communication runs for "
        f"{duration(all_of_it / found.height)}"
    )
    return Tile("communication_share", label, percent(exposed / whole), detail, exposed / whole)


def _rate(facts: Mapping[str, Any]) -> Tile:
    rate = facts["images_per_s"]
    if rate is None:
        return Tile(
            "images_per_s", "Samples per second", "unknown", "give the batch: `--label batch=N`"
        )
    batch = f"batch {facts['batch']:,}, {count(facts['gpus'], 'worker')}"
    return Tile("images_per_s", "Samples per second", f"{rate:,.0f}", batch, rate)


def _cause_of(subject: Subject, window: int, is_host: bool) -> str:  # noqa: FBT001
    """Name the largest cause of idle time in a recording of `window` ns; none for host times."""
    if is_host:
        return ""
    causes = subject.close.idle.rows.filter(pl.col("idle_ns") > 0).sort(-pl.col("idle_ns"))
    if causes.is_empty():
        return ""
    cause, length, rests_on = causes.select("cause", "idle_ns", "rests_on").row(0)
    return f", the longest part ({percent(length / window)}): {_because(cause, rests_on)}"


def _without_steps(subject: Subject) -> Markup:
    """Summarise a run without steps: times over its window in place of a step."""
    answer = subject.run.breakdown.answer(by="stage")
    window, idle = answer.meta["window_ns"], answer.meta["idle_ns"]
    if not window:
        raise MissingDataError("nothing was recorded that takes time")
    most = answer.rows.sort(-pl.col("exposed_ns")).row(0, named=True)
    is_weak = any(each["stage"] == most["stage"] for each in answer.meta.get("weak", ()))
    by = " on weak evidence" if is_weak else ""
    is_host = "ops" not in answer.rows.columns
    number = answer.meta.get("devices") or answer.meta.get("processes") or 1
    found, does = (
        subject.close.work.communication,
        "" if is_host else _does(subject.run.breakdown(by="kind")),
    )
    where = count(number, "process" if is_host else "GPU")
    on_each = " on each" if number > 1 else ""
    sentences = [
        f"No steps are known; the recording of {where} lasts {duration(window / number)}{on_each}.",
        *([f"Most of what runs there: {does} of that time."] if does else []),
        *([f"Of it {percent(most['exposed_ns'] / window)} is {most['stage']}{by}."]
          if most["stage"] != "OTHER" else []),
        f"Nothing runs for {percent(idle / window)} of it{_cause_of(subject, window, is_host)}.",
    ]  # fmt: skip
    busy = 1 - idle / window
    tiles = [
        Tile("step_ns", "Step, mean", "unknown", "no steps are known"),
        Tile("busy_share", "GPU busy", percent(busy), does or "of the recording", busy),
        *([_communication(subject, "of a GPU")] if found.height else []),
        Tile("idle_ns", "Idle", duration(idle / number), f"of {where}, in the mean", idle / number),
        Tile("images_per_s", "Samples per second", "unknown", "no steps are known"),
    ]  # fmt: skip
    return joined(
        fragment("paragraphs", sentences, "lead"),
        fragment("tiles", tiles),
        fragment("notes", [f"Warning: {text}" for text in subject.run.warnings]),
    )
