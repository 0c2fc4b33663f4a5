"""Functions that draw answers, by the names of figures in `Answer.figures`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import plotly.graph_objects as go
import polars as pl

from tracekit.model import Answer
from tracekit.present._compare_figures import changes_figure, comparison_figure
from tracekit.present._figures import Heading
from tracekit.present._heat_figure import heat_figure
from tracekit.present._latency_figures import histogram_figure, latency_figure
from tracekit.present._link_figures import matrix_figure, network_figure, utilisation_figure
from tracekit.present._machine_figure import machine_figure
from tracekit.present._memory_figures import memory_figure, memory_fit_figure
from tracekit.present._roofline_figure import roofline_figure
from tracekit.present._scaling_figure import scaling_figure
from tracekit.present._stage_figures import breakdown_figure, stage_bars_figure
from tracekit.present._steps_figures import history_figure, steps_figure
from tracekit.present._study_figures import (
    components_figure,
    distribution_figure,
    hardware_figure,
    overhead_figure,
)
from tracekit.present._waits_figures import (
    BUBBLE_COLOURS,
    STALL_COLOURS,
    idle_figure,
    parts_figure,
    path_figure,
    pipeline_figure,
    whatif_figure,
)
from tracekit.support.wording import percent


def _by_stage(devices: pl.DataFrame | None) -> pl.DataFrame | None:
    return None if devices is None else devices.rename({"part": "stage"})


def _steps(answer: Answer) -> go.Figure:
    """Draw the step times of a run or of a comparison, computing those of a run only now."""
    steps = answer.tables["steps"] if "steps" in answer.tables else answer.source()
    subtitle = _of_pair(answer) if "steps" in answer.tables else f"{answer.run}, means over GPUs"
    return steps_figure(steps, heading=Heading("Steps one by one", subtitle))


def _names(answer: Answer) -> tuple[str, str]:
    a, b = answer.source
    return a, b


def _of_pair(answer: Answer) -> str:
    a, b = _names(answer)
    per = answer.meta["per"] or "step"
    on_host = ", on the host" if "basis" in answer.meta else ""
    return f"{a} (A) and {b} (B), means per {per.replace('/', ' and ')}{on_host}"


def _groups(columns: list[str]) -> list[str]:
    """Return the columns that name a compared group: those before the first column ``a_...``."""
    return list(itertools.takewhile(lambda name: not name.startswith("a_"), columns))


def _history(answer: Answer) -> go.Figure:
    metric, label = answer.meta["metric"], answer.meta["label"]
    subtitle = f"{metric} step of each, {answer.source}; {answer.meta['headline']}"
    heading = Heading("Step from recording to recording", subtitle)
    return history_figure(answer.rows, label=label, heading=heading)


def _matrix(answer: Answer) -> go.Figure:
    traffic = answer.source
    return matrix_figure(
        traffic.links("pair,method"),
        heading=Heading("Bytes between GPUs", _on_machine(answer)),
        recorded=traffic.recorded,
        unplaced=answer.meta["collectives_on_no_link"],
    )


def _machine(answer: Answer) -> go.Figure:
    traffic = answer.source
    return machine_figure(
        traffic.machine,
        traffic.links(),
        heading=Heading("Utilisation of links", _on_machine(answer)),
        unplaced=answer.meta["collectives_on_no_link"],
    )


def _timeline(answer: Answer) -> go.Figure:
    traffic, subtitle = answer.source, _on_machine(answer)
    note = traffic.timeline_note()
    return utilisation_figure(
        traffic.timeline(),
        heading=Heading(
            "Utilisation of links over time", f"{subtitle}; {note}" if note else subtitle
        ),
        unplaced=answer.meta["collectives_on_no_link"],
    )


def _network(answer: Answer) -> go.Figure:
    heading = Heading("What crossed the network", _on_machine(answer))
    return network_figure(answer.source.links("nic"), heading=heading)


def _on_machine(answer: Answer) -> str:
    machine = answer.source.machine
    return f"{answer.run}, on {machine.name} ({machine.origin})"


def _plain_machine(answer: Answer) -> go.Figure:
    machine = answer.source
    heading = Heading(machine.name, f"links of the machine ({machine.origin})")
    return machine_figure(machine, heading=heading)


def _latency(answer: Answer) -> go.Figure:
    by_run = pl.concat(
        table.select(pl.lit(name).alias("run"), pl.all()) for name, table in answer.tables.items()
    )
    return latency_figure(by_run, heading=Heading("Latency by size of message", answer.title))


def _stages(answer: Answer) -> go.Figure:
    per = "epoch" if "images" in answer.meta else "step"
    return stage_bars_figure(
        answer.tables["stages"],
        heading=Heading(f"What {'an' if per == 'epoch' else 'a'} {per} is made of", answer.source),
        per="epoch" if per == "epoch" else "iteration",
    )


def _stage_speedups(answer: Answer) -> go.Figure:
    """Draw the speedup of stages: one panel per network and stage."""
    rows = answer.rows
    each = [
        rows.select(
            "mode", "batch", "method", "gpus", "run", "runs", speedup=f"speedup_{name}",
            speedup_from=f"speedup_{name}_from", speedup_to=f"speedup_{name}_to",
            network=pl.format("{}, {}", pl.coalesce("network", pl.lit("network unknown")),
                              pl.lit(stage)),
        )
        for name, stage in (("fp_bp", "FP+BP"), ("wu", "WU"))
    ]  # fmt: skip
    return _scaling(replace(answer, rows=pl.concat(each).sort("network")), "speedup", "Stages, ")


def _scaling(answer: Answer, value: str, of: str = "") -> go.Figure:
    title = f"{of}{answer.meta['mode']} scaling"
    heading = Heading(title[0].upper() + title[1:], answer.source)
    return scaling_figure(answer.rows, value=value, heading=heading)


def _overheads(answer: Answer) -> go.Figure:
    return overhead_figure(answer.tables["overheads"], heading=_over_baseline(answer))


def _over_baseline(answer: Answer) -> Heading:
    return Heading(f"Time over that of {answer.meta['baseline']}", answer.source)


def _cells(overheads: pl.DataFrame) -> pl.DataFrame:
    """Add ``configuration``, the name of the heat map's row: network, method, GPUs and so on."""
    known = overheads.drop_nulls("overhead_percent")
    alike = known.select("network", "batch", "gpus", "method", "scaling").is_duplicated()
    runs = ("run", "baseline_run") if alike.any() else ()
    parts = ("network", "method", pl.format("{} GPUs", "gpus"), "scaling", *runs)
    text = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    return known.with_columns(configuration=text)


def _memory_use(answer: Answer) -> go.Figure:
    heading = Heading("Memory by GPU", "most in use before training and in it")
    return memory_figure(answer.tables["points"], heading=heading)


def _memory_fit(answer: Answer) -> go.Figure:
    root = answer.source["root"]
    return memory_fit_figure(
        answer.tables["points"].filter(gpu=root),
        answer.rows,
        heading=Heading(
            "Memory in training by batch", f"GPU {root}, and the line that gives the largest batch"
        ),
        capacity_bytes=answer.source["capacity"],
    )


def _sensitivity(answer: Answer) -> go.Figure:
    figure = pl.format("{}, {}, {} GPUs", "network", "method", "gpus")
    moved = answer.rows.select("assumption", "change_percent", figure=figure)
    largest = pl.col("change_percent").max().over("assumption")
    return heat_figure(
        moved.filter(largest >= 1).sort(largest, descending=True, maintain_order=True),
        "assumption", "figure", "change_percent",
        heading=Heading("Change of speedups over the range of each assumption", answer.source),
    )  # fmt: skip


def _bubbles(answer: Answer) -> go.Figure:
    heading = Heading("Lost time of pipeline stages", _waited(answer))
    return parts_figure(answer.source, BUBBLE_COLOURS, heading=heading)


def _waited(answer: Answer) -> str:
    """Return a subtitle: the run, and whether times are sums or means."""
    meta = answer.meta
    over = f"sum over {meta['sum_over']}" if "sum_over" in meta else f"mean per {meta['per']}"
    some = "some of it simulated" if meta.get("simulated") else ""
    return ", ".join(filter(None, [answer.title.rpartition(" · ")[0], over, some]))


def _one_step(answer: Answer) -> go.Figure:
    facts = answer.meta["pipeline"]
    texts = [answer.title.rpartition(" · ")[0], "the step with the median length"]
    texts += [f"{percent(facts['bubble_share'])} of all steps is bubble"]
    if facts["theory_share"] is not None:
        texts.append(f"{percent(facts['theory_share'])} by theory")
    heading = Heading("A step of the pipeline", ", ".join(filter(None, texts)))
    return pipeline_figure(answer.source, heading=heading)


def _critical_path(answer: Answer) -> go.Figure:
    return path_figure(answer.source(), heading=Heading("What steps waited for", answer.run or ""))


def _whatif(answer: Answer) -> go.Figure:
    subtitle = f"{answer.run or ''}; whiskers: ranges of the predictions"
    heading = Heading("Steps with something changed, by replay", subtitle)
    return whatif_figure(answer.rows, heading=heading)


def _stragglers(answer: Answer) -> go.Figure:
    times = answer.tables["times"]
    owner = "device" if times["rank"].has_nulls() else "rank"
    return heat_figure(
        times, owner, "iteration", "excess_percent",
        heading=Heading("Own time of a step beyond that of the median rank", answer.run or ""),
    )  # fmt: skip


def _breakdown(answer: Answer) -> go.Figure:
    heading = Heading(answer.title.rpartition(" · ")[2].capitalize(), answer.run or "")
    return breakdown_figure(answer.readable_rows, answer.meta, heading=heading)


def _roofline(answer: Answer) -> go.Figure:
    heading = Heading("Operators under the roofs of the GPU", answer.run or "")
    return roofline_figure(answer.rows, answer.meta, heading=heading)


DRAWINGS: dict[str, Callable[[Answer], go.Figure]] = {
    "batch effect": lambda answer: overhead_figure(
        answer.rows.rename({"change_percent": "overhead_percent"}),
        heading=Heading("Time of an epoch over that with the smallest batch", answer.source),
        axis="change",
    ),
    "breakdown": _breakdown,
    "bubbles": _bubbles,
    "changes": lambda answer: changes_figure(
        answer.rows,
        key=_groups(answer.rows.columns),
        names=_names(answer),
        heading=Heading("Largest changes", _of_pair(answer)),
    ),
    "critical path": _critical_path,
    "distributions": lambda answer: distribution_figure(
        answer.rows, heading=Heading("Distribution over jobs, by the model", answer.source)
    ),
    "efficiency": lambda answer: _scaling(answer, "efficiency"),
    "hardware speedups": lambda answer: hardware_figure(
        answer.rows, heading=Heading("Other hardware, by the model", f"against {answer.source}")
    ),
    "history": _history,
    "idle": lambda answer: idle_figure(
        answer.source, heading=Heading("Why nothing runs", answer.run or "")
    ),
    "images per second": lambda answer: _scaling(answer, "images_per_s", "Images per second, "),
    "latency": _latency,
    "machine": _machine,
    "matrix": _matrix,
    "memory extra": lambda answer: overhead_figure(
        answer.rows.rename({"extra_percent": "overhead_percent"}),
        heading=Heading(
            "Memory of the root beyond that of the others",
            ", ".join(
                [
                    f"GPU {answer.source['root']}, in training",
                    *filter(None, [answer.meta.get("of_runs")]),
                ]
            ),
        ),
        axis="extra memory",
    ),
    "memory fit": _memory_fit,
    "memory growth": lambda answer: overhead_figure(
        answer.rows.rename({"increase_percent": "overhead_percent"}),
        heading=Heading(
            "Memory by batch",
            f"GPU {answer.source['root']}, in training, over that of the smallest batch",
        ),
        axis="growth",
    ),
    "memory use": _memory_use,
    "messages": lambda answer: histogram_figure(
        answer.rows, heading=Heading("Messages by size", answer.run or "")
    ),
    "overhead map": lambda answer: heat_figure(
        _cells(answer.tables["overheads"]),
        "configuration",
        "batch",
        "overhead_percent",
        heading=_over_baseline(answer),
    ),
    "overheads": _overheads,
    "pipeline": _one_step,
    "plain machine": _plain_machine,
    "roofline": _roofline,
    "run time": lambda answer: _scaling(
        answer, "time_ns", f"Time of {'a step' if answer.meta['time'] == 'step' else 'an epoch'}, "
    ),
    "speedup": lambda answer: _scaling(answer, "speedup"),
    "stage speedups": _stage_speedups,
    "route times": lambda answer: overhead_figure(
        answer.rows.with_columns(overhead_percent=100 * pl.col("time_share"), method="route_type"),
        heading=Heading("Time of copies between GPUs by kind of route", answer.source),
        axis="share",
    ),
    "sensitivity": _sensitivity,
    "stage speedup": lambda answer: scaling_figure(
        answer.rows.drop("speedup", "speedup_low", "speedup_high", strict=False).rename(
            {"speedup_fp_bp": "speedup"}
        ),
        heading=Heading("Speedup of FP and BP", answer.source),
    ),
    "stages": _stages,
    "stalls": lambda answer: parts_figure(
        answer.source,
        STALL_COLOURS,
        heading=Heading("GPU time by activity and cause of waiting", _waited(answer)),
    ),
    "step parts": lambda answer: comparison_figure(
        answer.tables["contributions"].rename({"part": "stage"}),
        devices=_by_stage(answer.tables.get("devices")),
        names=_names(answer),
        heading=Heading("What a step is made of", _of_pair(answer)),
    ),
    "steps": _steps,
    "straggler cost": lambda answer: heat_figure(
        answer.source,
        "worker",
        "step",
        "excess_percent",
        heading=Heading("Computing of each worker beyond its ideal time", answer.title),
    ),
    "stragglers": _stragglers,
    "time components": lambda answer: components_figure(
        answer.rows, heading=Heading("Parts of a step, by the model", answer.source)
    ),
    "timeline": _timeline,
    "network": _network,
    "whatif": _whatif,
}
"""Functions that draw answers: name of the drawing -> function."""
