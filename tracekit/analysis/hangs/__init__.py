"""Explain a hang of a job from the dumps of its ranks."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.hangs._answer import find_hang

__getattr__, __dir__ = lazily(__name__)
