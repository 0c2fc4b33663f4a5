"""Cost of stragglers in a job: its steps replayed with and without them."""

from tracekit.analysis.straggler_cost._straggler_cost import KEYS, straggler_cost

__all__ = ["KEYS", "straggler_cost"]
