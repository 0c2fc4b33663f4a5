"""Cost of stragglers in a job, by replaying its steps."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.straggler_cost._cost import straggler_cost

__getattr__, __dir__ = lazily(__name__)
