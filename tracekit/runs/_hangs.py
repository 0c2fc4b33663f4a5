"""Dumps of a job that hangs; they are no run, since they hold no times."""

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
def hang(dumps: Sequence[StrPath]) -> Answer:
    """Say why a job hangs.

    See `tracekit.analysis.hangs.find_hang`.

    Parameters
    ----------
    dumps
        Dumps of PyTorch's flight recorder, what `ncclras -f json` printed, or folders of them.

    Raises
    ------
    InputError
        If a file is no dump, or damaged.
    """
    from tracekit.analysis.hangs import find_hang
    from tracekit.sources.hang_dumps import read_dumps

    found = read_dumps(dumps)
    answer = find_hang(found.entries, found.ranks, found.peers, found.events, found.warnings)
    return replace(answer, renderer=present.RENDERER)
