"""PyTorch traces: the JSON that Kineto writes (``*.pt.trace.json``), gzipped or not.

A trace is one JSON object whose ``traceEvents`` hold nearly all of it and may be gigabytes. They
are read piece by piece, never as one document; times are taken from their digits, not from floating
point numbers, which hold no microseconds of Unix time to the nanosecond.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.kineto._trace import is_kineto, read

__getattr__, __dir__ = lazily(__name__)
