"""The page of the view: a chart without data, which its script asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracekit.model import STAGES
from tracekit.present.pages._fragments import fragment
from tracekit.present.pages._shell import PageSection, page_of


@dataclass(frozen=True)
class _Entry:
    look: str
    text: str


@dataclass(frozen=True)
class _Chart:
    label: str = "Ops of the run by GPU and stream"
    views: Sequence[str] = ()
    legend: Sequence[_Entry] = (
        *(_Entry(stage, stage) for stage in STAGES),
        _Entry("WU hid", "hatched: collectives and copies between GPUs"),
        _Entry("idle", "ranges of no stage"),
    )


def view_page(version: str) -> str:
    """Return the page of the view, which holds nothing of any run.

    Parameters
    ----------
    version
        Version of what serves it.
    """
    section = PageSection("run", "", "", fragment("run_chart", _Chart()))
    return page_of(
        "View", "", [section], what="view", version=version, has_contents=False, asks=True
    )
