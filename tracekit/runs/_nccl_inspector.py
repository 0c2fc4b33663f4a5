"""Logs of NCCL's inspector; they are no runs, since most do not say when anything ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tracekit import present
from tracekit.runs._question import question_of
from tracekit.support.files import StrPath

if TYPE_CHECKING:
    from tracekit.model import Answer


@question_of
def nccl_inspector(logs: Sequence[StrPath], by: str = "size") -> Answer:
    """Say how fast collectives are and who waits, by NCCL's inspector.

    See `tracekit.analysis.communication.nccl_inspector`.

    Parameters
    ----------
    logs
        Logs of NCCL's inspector of one job, or folders of them.
    by
        size, collective or rank.

    Raises
    ------
    InputError
        If a file is no such log, or damaged.
    """
    from tracekit.analysis.communication import nccl_inspector
    from tracekit.sources.nccl_inspector import read_inspector_logs

    found = read_inspector_logs(logs)
    answer = nccl_inspector(found.records, found.dropped, by, found.warnings)
    return replace(answer, renderer=present.RENDERER)
