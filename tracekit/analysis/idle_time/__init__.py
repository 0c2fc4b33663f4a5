"""Why nothing runs on a GPU: gaps, what the host was doing, what holds a stream back.

What is public of it is public in `tracekit.analysis`.
"""

__all__: list[str] = []
