"""FLOPs, bytes and rooflines of operators whose sizes were recorded."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.arithmetic.questions import flops, roofline

__getattr__, __dir__ = lazily(__name__)
