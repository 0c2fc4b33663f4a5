"""First line above a table: the result in one sentence, by a function of the analysis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.model import Answer
from tracekit.support.wording import FIRST_LINES


def with_headline(answer: Answer) -> Mapping[str, Any]:
    """Return an answer's meta with a ``headline`` (its result in one sentence), if rows give one.

    Answers with rows left out get none, since the row that matters may be missing.
    """
    find = answer.headline or FIRST_LINES.get(answer.command)
    if "headline" in answer.meta or find is None or not answer.is_whole or answer.rows.is_empty():
        return answer.meta
    text = find(answer.rows, answer.meta)
    return {**answer.meta, "headline": text} if text else answer.meta
