"""Rules on the host's work while GPUs are idle."""

from __future__ import annotations

import polars as pl

from tracekit.analysis.diagnosis._facts import Facts, Finding, Lost, Win, counted, duration, rounded
from tracekit.analysis.diagnosis._parts import (
    CELL,
    COMPUTES,
    LENGTH,
    Part,
    host_calls,
    kernels,
    quantile_of,
)
from tracekit.analysis.facts import RECORDERS
from tracekit.analysis.facts import Facts as RunFacts
from tracekit.analysis.idle_account import (
    BLOCKING_COPY,
    ITEM,
    OS_CALLS,
    SWITCHES,
    doubt_of_silence,
    host_activity,
    in_ranges,
    pairs_of,
    plain_name,
    sampled,
)
from tracekit.engine import latest
from tracekit.model import Frames
from tracekit.support.batches import at_least_one
from tracekit.support.wording import count

_PAGEABLE_BYTES = 1 << 16
"""The driver copies less than this through a buffer of its own, whatever memory it lies in."""
_PINNED_BYTES_PER_NS = 12
"""What copies from pinned memory reach over PCIe 3.0 x16; newer buses are faster."""
_MOST_NAMES = 3
_HALF = 0.5
_COPIES = pl.Schema(
    {"rule": pl.String, "device": pl.Int32, "iteration": pl.Int64, "kind": pl.String,
     "is_pageable": pl.Boolean,
     **dict.fromkeys(
         ("number", "bytes", "time", "exposed", "earlier", "gain", "blocking", "no_input"), pl.Int64
     )}
)  # fmt: skip
_SLEEP = (SWITCHES, OS_CALLS)
_ASLEEP = "asleep in "
_KEPT = "lock|timedwait"
"""Calls in which a thread waits for a lock of another thread; Python's lock is a timed wait."""
_LOCK = "Python's lock"
_TAKE_OUT = (
    "Take what waits out of the loop: `cudaDeviceSynchronize`, `.cpu()`, copies that block; or do "
    "it every so many steps, or a step later."
)
_INSTEAD_OF_WAITING = {
    ITEM: "Read numbers less often: `.item()`, printing a loss, or an `if` on a tensor waits for "
    "all work before it. Keep them on the GPU (`torch.where`, `loss_sum += loss.detach()`) and "
    "fetch them every so many steps, or a step later.",
    BLOCKING_COPY: "Copy without blocking: from pinned memory (`pin_memory=True`) with "
    "`non_blocking=True`, ahead of the step that needs it.",
}
"""Advice by the call or state in which the host waits longest."""
_COPIED_AHEAD = {
    False: "Copy the next batch while this one is computed: on a stream of its own, from pinned "
    "memory (`non_blocking=True`), and let the computing stream wait for its event. ",
    True: "Most copies to the GPU are of backward passes or weight updates, and no batches: keep "
    "on the GPU what comes back (weights, states of the optimizer), or copy it part by part, each "
    "while others are updated or computed. ",
}
"""Advice by whether most exposed copies to the GPU bring no input."""
_SURE = 0.9
"""Of input that comes late so much is won; launches and copies then show that it had hidden."""


def input_bound(facts: Facts) -> Finding | None:
    """Find GPUs that wait for input data, or for a host that is between two steps."""
    # A GPU that only copies, as one that serves another, has nothing to wait for input with.
    devices = facts.found(kernels)["busy"]["device"].unique()
    computes = pl.col("device").is_in(devices.implode())
    own = facts.idle_of("input").filter(computes)
    outside = facts.idle_of("between_steps").filter(computes)
    waited, both = facts.lost(own), facts.lost(pl.concat([own, outside]))
    if not facts.is_worth(both.mean):
        return None
    recorded = facts.lost(own.filter(~pl.col("rests_on").is_in(_SLEEP)))
    is_input = 2 * waited.mean >= both.mean
    is_told = 2 * recorded.mean >= both.mean
    what = "for input" if is_input else "while the host is outside of its steps"
    parts = (
        (recorded.mean, "in ranges of input, or until a loader launched"),
        (waited.mean - recorded.mean, "asleep until input was copied"),
        (both.mean - waited.mean, "outside of steps, of unknown cause"),
    )
    return Finding(
        finding=f"GPUs wait {duration(both.mean)} {facts.per} {what}, {facts.share(both.mean)}.",
        win=Win(both.mean, _SURE * waited.least, both.most),
        confidence="measured" if is_told else "likely" if is_input else "hint",
        evidence=(
            *(f"{duration(length)} {facts.per} {why}" for length, why in parts if length >= 1),
            *_asleep(facts, own),
        ),
        advice=(
            "Read and decode ahead: more loader workers (`num_workers=`), a longer prefetch "
            "(`prefetch_factor=`), pinned memory (`pin_memory=True`) and copies that do not block "
            "(`non_blocking=True`), or preparing input on the GPU. The win is real if input is "
            "then always ready."
            if is_input
            else "Put NVTX ranges around the loader, logging and checkpoints to see which of them "
            "it is (`tracekit idle --by range`); move what can wait off the training thread."
        ),
    )


def _asleep(facts: Facts, own: pl.DataFrame) -> tuple[str, ...]:
    """Return text: how long the host slept, in which operating system calls; empty if unknown."""
    calls = own.filter(pl.col("detail").str.starts_with(_ASLEEP))
    names = calls["detail"].str.strip_prefix(_ASLEEP).unique().sort().head(_MOST_NAMES)
    if calls.is_empty():
        return ()
    return (f"{duration(facts.lost(calls).mean)} {facts.per} asleep in {', '.join(names)}",)


def off_cpu(facts: Facts) -> Finding | None:
    """Find launching threads that do not get to run: off the CPU, or waiting for a lock.

    A thread that sleeps until another thread has work for it (a condition, a pipe) does not count.
    """
    sleeps = facts.idle_of("off_cpu")
    own = sleeps.filter(_is_kept_off())
    lost = facts.lost(own)
    if not facts.is_worth(lost.mean):
        return None
    locked = facts.lost(own.filter(pl.col("detail").str.contains(_LOCK)))
    is_lock = 2 * locked.mean >= lost.mean
    seen = facts.lost(own.filter(pl.col("rests_on") == SWITCHES))
    turns = (
        f"{duration(locked.mean)} {facts.per} of it 5 ms at a time while another thread of its "
        "process ran, as who waits for Python's lock"
    )
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} because the thread that launches "
        f"does not get to run, {facts.share(lost.mean)}.",
        win=Win(lost.mean, lost.least / 2, lost.most),
        confidence="measured" if 2 * seen.mean >= lost.mean else "likely",
        evidence=(
            *([turns] if locked.mean else []),
            *_asleep(facts, own),
            *facts.where(places, "off_cpu"),
        ),
        advice=(
            "Another thread of the process has Python's lock: let it do less in Python, or in a "
            "process of its own (prepare and pin batches in workers, log elsewhere)."
            if is_lock
            else "Leave it a core: fewer loader workers or threads than cores "
            "(`num_workers=`, `OMP_NUM_THREADS`), no more processes than cores, and nothing that "
            "blocks in the thread that launches."
        )
        + " The win is real if it then launches ahead of the GPU.",
    )


def _is_kept_off() -> pl.Expr:
    """Select time off the CPU, except where a thread waits for another thread to give it work."""
    by_choice = pl.col("detail").str.starts_with(_ASLEEP) & ~pl.col("detail").str.contains(_KEPT)
    return ~by_choice.fill_null(value=False) | (pl.col("rests_on") == SWITCHES)


def places(part: Part) -> Frames:
    """Return in which ranges and functions the host was while GPUs were idle.

    ``where``: ``rule``, ``name`` of the range, ``time`` (ns); ``samples``: ``name`` of a function
    and ``number`` of stack samples in it, while launches were late by more than 1 ms.
    """
    late = pl.col("is_short") & ~pl.col("queued").fill_null(value=True)
    asks = {
        "off_cpu": (pl.col("cause") == "off_cpu") & _is_kept_off(),
        "sync_in_loop": pl.col("cause") == "waiting_call",
        "launch_bound": late,
        "busy_host": pl.col("is_long"),
        "allocation_in_loop": pl.col("cause") == "allocation",
    }
    pairs = pairs_of(part.trace, part.idle_gaps.gaps)
    asked = part.idle.with_columns(own.fill_null(value=False).alias(rule)
                                   for rule, own in asks.items())  # fmt: skip
    named = in_ranges(part.trace, asked.filter(pl.any_horizontal(*asks)), pairs, "name")
    known = named.drop_nulls("name").with_columns(name=plain_name(pl.col("name")))
    ranges = pl.concat(
        known.filter(rule).group_by("name").agg(time=LENGTH.sum())
        .select(pl.lit(rule).alias("rule"), "name", "time")
        for rule in asks
    )  # fmt: skip
    met = sampled(part.trace, asked.filter("busy_host"), pairs)
    return {"where": ranges, "samples": met.group_by("name").agg(number=pl.len())}


def _executed(facts: Facts) -> tuple[str, ...]:
    """Return as text the functions in which the host spent long launch delays (stack samples)."""
    each = facts.found(places)["samples"].group_by("name").agg(pl.col("number").sum())
    functions = each.sort("number", "name", descending=[True, False]).head(_MOST_NAMES).rows()
    return tuple(f"{number} of {each['number'].sum()} samples in {name}"
                 for name, number in functions)  # fmt: skip


def compilation(facts: Facts) -> Finding | None:
    """Find GPUs that wait while code is compiled or loaded."""
    own = facts.idle_of("compiling", "loading")
    lost = facts.lost(own)
    if not facts.is_worth(lost.mean) or (facts.has_steps and not facts.is_usual(own)):
        return None
    built = facts.lost(facts.idle_of("compiling"))
    names = own["detail"].drop_nulls().unique().sort().head(_MOST_NAMES)
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} while code is compiled or loaded, "
        f"{facts.share(lost.mean)}.",
        win=Win(lost.mean, lost.least / 2, lost.most),
        confidence="measured",
        evidence=(
            f"{duration(built.mean)} {facts.per} until code that was built was linked or loaded",
            f"{duration(lost.mean - built.mean)} {facts.per} in calls that load code",
            f"calls: {', '.join(names)}",
        ),
        advice="Compile once: keep the cache of compiled code between runs "
        "(`JAX_COMPILATION_CACHE_DIR`, `TORCHINDUCTOR_CACHE_DIR`, `CUDA_CACHE_PATH`), shapes that "
        "do not change (padding, `mark_dynamic`), code for this GPU in the binary in place of PTX.",
    )


def sync_in_loop(facts: Facts) -> Finding | None:
    """Find synchronisation inside of steps: the host waits for the GPU, then the GPU for the host.

    If the host did not wait for a busy GPU, it would run ahead of the GPU by the time of the wait.
    Later delays of the host would be hidden up to that time.
    """
    own = facts.idle_of("waiting_call")
    if not (facts.has_steps and facts.is_usual(own)):
        return None
    lost = facts.lost(own)
    late = facts.idle_of("host_delay", "launch_latency", "between_steps")
    behind = facts.lost(late.filter(~pl.col("queued").fill_null(value=True)))
    # What it is late by may have other reasons: no more of it counts than is seen.
    hidden = min(facts.waited_for("waiting_in_loop"), behind.mean, lost.mean)
    if not facts.is_worth(lost.mean + hidden):
        return None
    by_name = _by_time(facts.found(host_calls)["waits"])
    most = by_name.row(0, named=True)["name"] if by_name.height else ""
    hidden_text = (
        f"{duration(hidden)} {facts.per} late otherwise, which a host that had not waited hides"
    )
    return Finding(
        finding=f"GPUs run dry for {duration(lost.mean + hidden)} {facts.per} because the host "
        f"waits for them, {facts.share(lost.mean + hidden)}.",
        win=Win(lost.mean + hidden, lost.least, lost.most + behind.most),
        confidence="measured" if facts.number > 1 else "hint",  # one step is no loop
        evidence=(
            f"{duration(lost.mean)} {facts.per} in calls that wait, or late by as much",
            *([hidden_text] if hidden >= 1 else []),
            *_called(facts, by_name),
            *facts.where(places, "sync_in_loop"),
        ),
        advice=_INSTEAD_OF_WAITING.get(most, _TAKE_OUT) + " The win is real if the host is then "
        "ahead of the GPU.",
    )


def pageable_copies(facts: Facts) -> Finding | None:
    """Find copies to the GPU from pageable memory, and copies that block the host as these do."""
    copies = facts.of_rule(host_copies, "sums", "pageable_copies")
    lost = facts.lost(copies, "exposed")
    if not facts.is_worth(lost.mean):
        return None
    recorded = facts.lost(copies.filter("is_pageable"), "exposed")
    least = facts.lost(copies.with_columns(gain=pl.col("gain") / _PINNED_BYTES_PER_NS), "gain")
    return Finding(
        finding=f"Copies to the GPU delay the host and the GPU by {duration(lost.mean)} "
        f"{facts.per}, {facts.share(lost.mean)}, at {_rate(copies)}.",
        win=Win((least.mean + lost.mean) / 2, least.least, lost.most),
        confidence="measured" if 2 * recorded.mean >= lost.mean else "likely",
        evidence=(
            _number(copies),
            *facts.where(layers_of_copies, "pageable_copies"),
            f"{duration(recorded.mean)} {facts.per} from memory that was recorded as pageable"
            if recorded.most
            else "they block their calls as copies from pageable memory do; its kind is unknown",
            f"{duration(lost.mean)} {facts.per} in which nothing else runs",
        ),
        advice="Let them begin in pinned memory (`pin_memory=True`) and not block "
        "(`non_blocking=True`), on a stream of their own for the next step. At least the time "
        "above that of 12 GB/s is won if the memory is pageable, all of it if they are hidden.",
    )


def unhidden_copies(facts: Facts) -> Finding | None:
    """Find exposed copies: to the host, or from its pinned memory, while no other op runs."""
    copies = facts.of_rule(host_copies, "sums", "unhidden_copies")
    lost = facts.lost(copies, "exposed")
    if not facts.is_worth(lost.mean) or not facts.is_usual(copies.filter(pl.col("exposed") > 0)):
        return None
    to_gpu, back = (copies.filter(pl.col("kind") == kind) for kind in ("h2d", "d2h"))
    where = "to the host" if to_gpu.is_empty() else "from and to the host"
    earlier = facts.lost(to_gpu, "earlier")
    blocking = int(to_gpu["blocking"].sum())
    # Exposed mostly in backward passes and updates, they bring no batch.
    no_batch = bool(2 * to_gpu["no_input"].sum() > to_gpu["exposed"].sum())
    held = f"{blocking:,} of them block their call although their memory is pinned"
    returned = f"{duration(facts.lost(back, 'exposed').mean)} {facts.per} of them to the host"
    waited = "they begin when they are launched: whether a batch was there before is unknown"
    if earlier.mean >= 1:
        sooner = "by which they and the next kernel could have begun earlier"
        waited = f"{duration(earlier.mean)} {facts.per} {sooner}"
    return Finding(
        of_gpu=True,
        finding=f"Copies {'to the GPU' if back.is_empty() else where} run for "
        f"{duration(lost.mean)} {facts.per} while it computes nothing, {facts.share(lost.mean)}, "
        f"at {_rate(copies)}.",
        win=Win((earlier.mean + lost.mean) / 2, earlier.least, lost.most),
        confidence="measured" if 2 * earlier.mean >= lost.mean else "likely",
        evidence=(
            _number(copies),
            *facts.where(layers_of_copies, "unhidden_copies"),
            *([] if back.is_empty() else [returned]),
            *([held] if blocking else []),
            *([] if to_gpu.is_empty() else [waited]),
        ),
        advice=("Do not block in them (`non_blocking=True`). " if blocking else "")
        + ("" if to_gpu.is_empty() else _COPIED_AHEAD[no_batch])
        + "Copy to the host less often, or beside the next step. " * (not back.is_empty())
        + "Faster copies (fewer bytes: smaller types, decoding on the GPU) win a part.",
    )


def small_copies(facts: Facts) -> Finding | None:
    """Find many small exposed copies from and to the host."""
    copies = facts.of_rule(host_copies, "sums", "small_copies")
    lost = facts.lost(copies, "exposed")
    if not facts.is_worth(lost.mean) or not facts.is_usual(copies.filter(pl.col("exposed") > 0)):
        return None
    every = int(copies["number"].sum())
    number = every / facts.cells.height
    to_gpu = int(copies.filter(pl.col("kind") == "h2d")["number"].sum())
    return Finding(
        of_gpu=True,
        finding=f"{counted(number, 'copy', 'copies')} of no more than 64 KiB {facts.per_gpu} run "
        f"for {duration(lost.mean)} while nothing else does, {facts.share(lost.mean)}.",
        win=Win(lost.mean / 2, 0.0, lost.most),
        confidence="likely",
        evidence=(
            f"{to_gpu:,} from the host, {every - to_gpu:,} to it, at {_rate(copies)}",
            *facts.where(layers_of_copies, "small_copies"),
        ),
        advice="Copy less often: pack small tensors into one buffer, keep counters and masks on "
        "the GPU, exchange between GPUs by a peer copy in place of two by way of the host.",
    )


def unified_memory(facts: Facts) -> Finding | None:
    """Find migrations of unified memory pages while no other op runs."""
    copies = facts.of_rule(host_copies, "sums", "unified_memory")
    lost = facts.lost(copies, "exposed")
    if not facts.is_worth(lost.mean):
        return None
    return Finding(
        of_gpu=True,
        finding=f"Pages of unified memory move for {duration(lost.mean)} {facts.per} while nothing "
        f"else runs, {facts.share(lost.mean)}, at {_rate(copies)}.",
        win=Win(lost.mean / 2, 0.0, lost.most),
        confidence="likely",
        evidence=(_number(copies), *facts.where(layers_of_copies, "unified_memory")),
        advice="Move pages before they are needed (`cudaMemPrefetchAsync`), say where they belong "
        "(`cudaMemAdvise`), or allocate on the GPU and copy (`cudaMalloc`, `cudaMemcpyAsync`).",
    )


def _number(copies: pl.DataFrame) -> str:
    size = int(copies["bytes"].sum())
    return f"{count(int(copies['number'].sum()), 'copy')} of {rounded(size / 1e6, 4)} MB in all"


def _rate(copies: pl.DataFrame) -> str:
    size, time = copies.select(pl.col("bytes", "time").sum()).row(0)
    return f"{size / max(time, 1):.3g} GB/s"


def _is_large_copy(*kinds: str) -> pl.Expr:
    is_one = pl.col("kind").cast(pl.String).is_in(kinds) & (pl.col("bytes") > _PAGEABLE_BYTES)
    is_migration = (pl.col("host_memory") == "managed").fill_null(value=False)
    return (is_one & (pl.col("stage") != "ME") & ~is_migration).fill_null(value=False)


def _is_pageable() -> pl.Expr:
    """Select copies from pageable memory; if that is unknown, copies that block their call."""
    return (pl.col("host_memory") == "pageable").fill_null(_holds_its_call())


def _holds_its_call() -> pl.Expr:
    """Select copies whose launching call returns in their second half, or after their end."""
    held = pl.col("launch_end") - pl.col("start")
    return (2 * held >= LENGTH).fill_null(value=False)


def host_copies(part: Part) -> Frames:
    """Return sums over the host copies that rules select, with their exposed time.

    ``sums``: ``rule, device, iteration, kind, is_pageable``; ``number``, ``bytes``; ``time``,
    ``exposed`` (no other op runs), ``earlier`` (how much earlier the copy and the next kernel could
    have started), ns; ``gain``, how many more bytes a copy from pinned memory could have moved in
    the exposed time; ``blocking``, the number of copies whose launching call waits for them; and
    ``no_input``, the exposed time of copies in backward passes and weight updates, ns.
    """
    each = pl.concat(
        [part.exposed(is_own).with_columns(rule=pl.lit(rule)) for rule, is_own in
         _of_rules().items()], how="diagonal",
    )  # fmt: skip
    may_hold_up = pl.col("rule").is_in(["unhidden_copies", "small_copies"])
    holding = _that_hold_up(part, each.filter(may_hold_up))
    size = (pl.col("bytes") * pl.col("share")).round()
    gain = _PINNED_BYTES_PER_NS * pl.col("exposed") - size
    sums = pl.concat([each.filter(~may_hold_up), holding], how="diagonal").with_columns(
        pl.col("kind").cast(pl.String),
        is_pageable=(pl.col("host_memory") == "pageable").fill_null(value=False),
    ).group_by("rule", *CELL, "kind", "is_pageable").agg(
        size.sum(), pl.col("exposed", "earlier").sum(), number=pl.col("counts").sum(),
        time=LENGTH.sum(), gain=gain.clip(0).sum(), blocking=_holds_its_call().sum(),
        no_input=pl.col("exposed").filter(pl.col("stage").is_in(["BP", "WU"])).sum(),
    )  # fmt: skip
    return {"sums": sums.select(_COPIES.names()).cast(_COPIES)}


def layers_of_copies(part: Part) -> Frames:
    """Return the table ``where``: time of the copies of `host_copies` by rule, GPU and layer."""
    rows = {rule: part.ops.filter(is_own).collect() for rule, is_own in _of_rules().items()}
    return {"where": part.launched_in(rows)}


def _of_rules() -> dict[str, pl.Expr]:
    """Return rule -> an expression that selects the host copies which the rule examines."""
    return {
        "pageable_copies": _is_large_copy("h2d") & _is_pageable(),
        "unhidden_copies": _is_large_copy("h2d", "d2h")
        & ((pl.col("kind") == "d2h") | ~_is_pageable()),
        "small_copies": (
            pl.col("kind").is_in(["h2d", "d2h"])
            & (pl.col("bytes") <= _PAGEABLE_BYTES) & (pl.col("stage") != "ME")
        ).fill_null(value=False),
        "unified_memory": (pl.col("host_memory") == "managed").fill_null(value=False),
    }  # fmt: skip


def _that_hold_up(part: Part, rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``earlier``: how much earlier a copy and the next kernel could have started, ns.

    The copy could have started when it was launched; the next kernel could have run at the time of
    the copy, from its own launch on. Exposed time of copies to the host is cut to that time, unless
    a thread that launches kernels or drives steps waits at the end of the copy: nothing else waits
    for it.
    """
    computing = part.ops.filter(COMPUTES)
    ends = rows.select("device", time="end")
    # Of the kernels between the ends of two copies only the first is needed.
    own = pl.concat(
        batch.with_columns(after=latest(batch, "begins", ends, ["device"]))
        .sort("begins").unique("after", keep="first").drop("after")
        for batch in at_least_one(computing.select("device", begins="start", ready="launch_end"))
    ).sort("begins")  # fmt: skip
    launching = computing.select("process", thread="launch_thread").unique().collect()
    driving = part.trace["iterations"].select("process", "thread").collect()
    threads = pl.concat([launching, driving]).unique()
    seen = part.trace.once(host_activity, of_all=True)["waiting"].join(threads, on="thread")
    waiting = seen.select("process", since="start", until="end").sort("since")
    after = rows.sort("end").join_asof(
        own, left_on="end", right_on="begins", by="device", strategy="forward",
        check_sortedness=False,
    ).join_asof(
        waiting, left_on="end", right_on="since", by="process", check_sortedness=False
    )  # fmt: skip
    waited = pl.col("start") - pl.col("launch_end")
    replaced = pl.col("end") - pl.max_horizontal("start", "ready")
    earlier = pl.min_horizontal("exposed", waited, replaced).clip(0, None)
    known = pl.col("launch_end").is_not_null() & pl.col("ready").is_not_null()
    is_waited_for = (pl.col("until") >= pl.col("end")).fill_null(value=False)
    held = pl.min_horizontal("exposed", replaced).clip(0, None)
    return after.with_columns(
        earlier=pl.when(known).then(earlier).otherwise(0),
        exposed=pl.when(known & (pl.col("kind") == "d2h") & ~is_waited_for)
        .then(held)
        .otherwise("exposed"),
    )


def launch_bound(facts: Facts) -> Finding | None:
    """Find GPUs that wait for launches, as launching kernels takes longer than running them.

    Launch cost shows in many short gaps; in a long gap the host does other work.
    """
    short = facts.idle.filter("is_short")
    late = short.filter(~pl.col("queued").fill_null(value=True))
    lost = facts.lost(late)
    won = facts.won(lost)
    if not facts.is_worth(won):
        return None
    found = facts.found(kernels)
    kernel, apart = (quantile_of(found[name], _HALF) for name in ("lengths", "apart"))
    slow = late.filter("is_slow")
    may_work = 2 * facts.lost(slow).mean >= lost.mean
    replays = facts.lost(late.filter("is_replayed"))
    are_replays = 2 * replays.mean >= lost.mean
    is_short = not (kernel is None or apart is None or kernel >= apart or may_work or are_replays)
    between = f"{duration(facts.lost(slow).mean)} {facts.per} of it over 100 us before a call"
    pace_texts = () if kernel is None or apart is None else (
        (f"half of all kernels take less than {duration(kernel)}, "
        f"half of all launches of a thread are more than {duration(apart)} apart"),
    )  # fmt: skip
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} for launches, "
        f"{facts.share(lost.mean)}"
        + (": kernels are shorter than what launches them" if is_short else "")
        + (", mostly for over 100 us each: the host may do other work then" if may_work else "")
        + ".",
        win=Win(
            0.75 * won,
            # Of other work cheaper launches win nothing.
            facts.lost(late.filter(~pl.col("is_slow"))).least / 2,
            facts.lost(short).most,
        ),
        confidence="measured" if is_short else "likely",
        evidence=(
            *pace_texts, f"in {count(facts.gaps('launch_bound'), 'gap')} of no more than 1 ms",
            *([between] if may_work else []),
            *([f"{duration(replays.mean)} {facts.per} before CUDA graphs"] if replays.mean else []),
            *_in_ranges(facts, late), *facts.where(places, "launch_bound"),
        ),
        advice=(
            "CUDA graphs are used already: let one graph hold what several do now, or the host do "
            "less between them. At half the time per launch about half is won."
            if are_replays
            else "Launch less: CUDA graphs, compiled or fused operators (`torch.compile`), a fused "
            "optimizer (`fused=True`), larger batches. At half the time per launch about half is "
            "won, with CUDA graphs nearly all."
        )
        + " Of what the host does between launches (`tracekit idle --longest 10`) that wins "
        "nothing: let it do that later, or in another thread." * may_work,
    )  # fmt: skip


def busy_host(facts: Facts) -> Finding | None:
    """Find GPUs that wait while the host launches nothing for more than 1 ms at a time."""
    own = facts.idle.filter("is_long")
    lost = facts.lost(own)
    if not facts.is_worth(lost.mean):
        return None
    is_seen = not facts.idle.filter(pl.col("rests_on") == SWITCHES).is_empty()
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} for a host that launches nothing for "
        f"more than 1 ms at a time, {facts.share(lost.mean)}.",
        win=Win(lost.mean / 2, 0.0, lost.most),
        confidence="likely" if is_seen else "hint",
        evidence=(
            f"in {count(facts.gaps('busy_host'), 'gap')}; "
            + ("it was on the CPU" if is_seen else "whether it was on the CPU was not recorded"),
            *facts.where(places, "busy_host"),
            *_executed(facts),
            *doubt_of_silence(facts.trace),
        ),
        advice=f"Look at what it does there (`tracekit idle --longest 10`{_stacks(facts)}): work "
        "that could wait, be done once, or by another thread or process.",
    )


def _stacks(facts: Facts) -> str:
    """Return advice to record host call stacks, if tracekit reads those of this profiler."""
    is_nsys = RECORDERS["nsys"] in RunFacts(facts.trace).recorders
    return ", call stacks by `-s process-tree`" if is_nsys else ""


def allocation_in_loop(facts: Facts) -> Finding | None:
    """Find GPUs that wait while memory is allocated or freed in usual steps."""
    own = facts.idle_of("allocation")
    lost = facts.lost(own)
    if not facts.is_worth(lost.mean) or not facts.is_usual(own):
        return None
    late = facts.idle_of("allocation", "waiting_call", "host_delay", "launch_latency")
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} while memory is allocated or freed, "
        f"{facts.share(lost.mean)}.",
        win=Win(lost.mean, lost.least / 2, facts.lost(late).most),
        confidence="measured",
        evidence=(
            *_called(facts, _by_time(facts.found(host_calls)["allocations"])),
            *facts.where(places, "allocation_in_loop"),
        ),
        advice="Allocate once and keep it: a caching allocator (and no `empty_cache()` in the "
        "loop), buffers that are reused, shapes that do not change. The win is real if the host is "
        "then ahead of the GPU.",
    )


def _by_time(calls: pl.DataFrame) -> pl.DataFrame:
    """Sum up calls during usual steps by name: ``name, number, time`` (ns), longest first."""
    by_name = calls.group_by("name").agg(pl.col("number", "time").sum())
    return by_name.sort("time", "name", descending=[True, False])


def _called(facts: Facts, calls: pl.DataFrame) -> tuple[str, ...]:
    """Return text per function: calls per step, and host time spent in them."""
    return tuple(
        f"{rounded(number / facts.cells.height)} x {name} {facts.per_gpu}, "
        f"{duration(time / facts.cells.height)} of its thread"
        for name, number, time in calls.head(_MOST_NAMES).rows()
    )


def _in_ranges(facts: Facts, late: pl.DataFrame) -> tuple[str, ...]:
    words = {
        "host_delay": "before their launching call began",
        "launch_latency": "from its begin on",
    }
    return tuple(
        f"{duration(lost)} {facts.per} {text}"
        for cause, text in words.items()
        if (lost := facts.lost(late.filter(pl.col("cause") == cause)).mean)
    )


def profiler_overhead(facts: Facts) -> Finding | None:
    """Find GPUs that wait for the profiler itself."""
    lost: Lost = facts.lost(facts.idle_of("profiler"))
    if not facts.is_worth(lost.mean):
        return None
    return Finding(
        finding=f"GPUs wait {duration(lost.mean)} {facts.per} for the profiler, "
        f"{facts.share(lost.mean)}.",
        win=Win(lost.mean, lost.least, lost.most),
        confidence="measured",
        evidence=(f"{duration(lost.mean)} {facts.per} of gaps lie in its own overhead",),
        advice="Nothing in the program: without the profiler this time is not lost. Record less "
        "(fewer traces, a shorter capture) before trusting the other numbers.",
    )
