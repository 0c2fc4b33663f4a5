"""Where GPU time goes, by any of several keys."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.breakdowns.questions import breakdown

__getattr__, __dir__ = lazily(__name__)
