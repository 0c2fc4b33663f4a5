"""RPD (ROCm Profile Data): the SQLite files of ``runTracer.sh`` and ``rpd_tracer``, ``*.rpd``.

An op (``rocpd_op``) is tied to the HIP call that launched it (``rocpd_api_ops``); markers of roctx
and PyTorch's operators stand among the calls (``rocpd_api``). Not to be confused with rocpd, the
SQLite files of rocprofv3, whose tables begin with the same word.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.rpd._database import is_rpd, read

__getattr__, __dir__ = lazily(__name__)
