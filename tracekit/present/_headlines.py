"""First line above a table: the answer in one sentence, as its question declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.model import Answer
from tracekit.support.wording import FIRST_LINES


def with_headline(answer: Answer) -> Mapping[str, Any]:
    """Return the meta of an answer with a ``headline``, unless it has one or its rows give none.

    Answers with rows left out get none, since the row that matters may be missing.
    """
    find = answer.headline or FIRST_LINES.get(answer.command)
    if "headline" in answer.meta or find is None or not answer.is_whole or answer.rows.is_empty():
        return answer.meta
    text = find(answer.rows, answer.meta)
    return {**answer.meta, "headline": text} if text else answer.meta
