"""rocprofv3's recordings: its JSON (``rocprofv3 --output-format json``)."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.rocprof._trace import is_rocprof, read

_HOMES = dict.fromkeys(("is_rocprof", "read"), "tracekit.sources.rocprof._trace")

__all__ = ["is_rocprof", "read"]

__getattr__, __dir__ = lazily(__name__, _HOMES)
