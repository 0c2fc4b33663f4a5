"""Sections of the report of one run. To add one, write a function and list it in `RUN_SECTIONS`."""

from __future__ import annotations

import polars as pl
from markupsafe import Markup

from tracekit.errors import MissingDataError
from tracekit.present import notes
from tracekit.present.pages import answer_table, fragment, frame_table, joined
from tracekit.report._communication import communication
from tracekit.report._subject import Section, Subject
from tracekit.report._svg_charts import Plot, curve, size_axis, thinned, time_axis
from tracekit.report._time_sections import findings, idle, ranges, ranks, stages, step_chart, steps
from tracekit.report._verdict_section import verdict

_MOST_POINTS = 1000
_KNOWN = ("yes", "none")


def memory(subject: Subject) -> Markup:
    """Draw the memory in use over time, and list the peaks."""
    answer = subject.run.memory.answer()
    if answer.rows.is_empty():
        ways = subject.close.info.filter(command="memory")["record_with"].drop_nulls()
        raise MissingDataError("no memory use was recorded", f"how to record it: {'; '.join(ways)}")
    return joined(
        _in_use(subject), answer_table(answer, "memory", "Most memory in use", is_open=True)
    )


def _in_use(subject: Subject) -> Markup | None:
    events = subject.run.trace["memory"].select("process", "device", "time", "in_use").collect()
    if events.is_empty():
        return None
    low, high = (float(getattr(events["time"], end)()) for end in ("min", "max"))
    most = float(events["in_use"].max() or 1)  # type: ignore[arg-type]
    x, y = time_axis("time", low, high), size_axis("in use", most)
    lines = [
        curve("line", list(thinned(own, _MOST_POINTS).select("time", "in_use").iter_rows()), x, y)
        for own in events.sort("time").partition_by("process", "device", maintain_order=True)
    ]
    return Plot("Memory in use", "Memory in use of each GPU over time", x, y, lines).html()


def unknown(subject: Subject) -> Markup:
    """List the data that the run lacks, and how to record them."""
    lacking = subject.close.info.filter(~pl.col("available").is_in(_KNOWN))
    if lacking.is_empty():
        return fragment("paragraphs", ["This run has everything that tracekit can show."], "")
    return frame_table(lacking, "unknown", "What is not known, and how to record it", is_open=True)


def provenance(subject: Subject) -> Markup:
    """List the files and the evidence that the report is based on."""
    run = subject.run
    reports = run.trace.read("reports")
    names = [
        "file",
        "format",
        "product",
        "schema_version",
        "size",
        "digest",
        "host",
        "rank",
        "clock_reason",
    ]
    table = frame_table(reports.select(names), "reports", "Files", is_open=True)
    meta = run.breakdown.answer(by="stage").meta
    labels = ", ".join(f"{key}={value}" for key, value in sorted(run.labels.items())) or "none"
    coverage = {name: meta[name] for name in ("coverage", "launched", "verdict") if name in meta}
    facts = [f"Run {run.name}, id {run.id}; labels: {labels}", *notes(coverage)]
    return joined(fragment("notes", facts), table)


RUN_SECTIONS = (
    Section("verdict", "Verdict", "How long does it take, and on what?", verdict),
    Section("findings", "Findings", "What can be made faster, and by how much?", findings),
    Section("step", "Op by op", "What runs on each GPU, and when?", step_chart),
    Section(
        "stages",
        "Stages",
        "Which stages take each GPU's time, and how much of them is hidden?",
        stages,
    ),
    Section("steps", "Steps", "Do all steps take equally long?", steps),
    Section("ranges", "Ranges and kernels", "Which parts of the program take time?", ranges),
    Section("idle", "Idle time", "Why does nothing run?", idle),
    Section(
        "communication", "Communication", "Which data moved where, and how fast?", communication
    ),
    Section("ranks", "GPUs and steps", "Does one GPU lag behind the others?", ranks),
    Section("memory", "Memory", "How much memory does each GPU use?", memory),
    Section(
        "unknown", "Not known", "What is not in this recording, and how to record it?", unknown
    ),
    Section("provenance", "Provenance", "What is this report based on?", provenance),
)
"""Sections of the page, in order."""
