"""Two runs side by side: their steps, what differs, and what the data can show.

What is public of it is public in `tracekit.analysis`.
"""

__all__: list[str] = []
