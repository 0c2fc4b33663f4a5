"""Rings of `tracekit.annotate` and `record --print-hook --ring`: the latest ranges of a program.

They hold ranges with host times, and no GPU work.
"""

from tracekit.sources.rings._ring import is_ring, read

__all__ = ["is_ring", "read"]
