"""PyTorch traces: the JSON that Kineto writes (``*.pt.trace.json``), gzipped or not.

A trace is one JSON object, nearly all of it in ``traceEvents``, and may be gigabytes. It is read
piece by piece, never as one document. Times are parsed as decimal digits, since a floating point
number of microseconds of Unix time is not exact to the nanosecond.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.kineto._kineto import is_kineto, read

__getattr__, __dir__ = lazily(__name__)
