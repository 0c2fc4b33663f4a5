"""Whose times can be compared: what speaks for the clocks of several reports.

What is public of it is public in `tracekit.analysis`.
"""

__all__: list[str] = []
