"""Breakdowns: GPU time by one or several keys."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.breakdowns.questions import breakdown

__getattr__, __dir__ = lazily(__name__)
