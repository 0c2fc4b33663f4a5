"""Which commands a run has enough data for, and SQL queries over its tables."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.overview._features import features, query

__getattr__, __dir__ = lazily(__name__)
