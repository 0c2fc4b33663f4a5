"""What GPUs compute: floating-point operations of the operators whose sizes were recorded."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.analysis.arithmetic.questions import flops

__getattr__, __dir__ = lazily(__name__)
