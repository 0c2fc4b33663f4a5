"""Tables over many runs: configurations, scaling, overhead, memory, projections.

What is public of it is public in `tracekit.analysis`.
"""

__all__: list[str] = []
