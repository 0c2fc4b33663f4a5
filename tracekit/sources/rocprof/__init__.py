"""Recordings of rocprofv3: rocpd (its SQLite files), and its JSON (``--output-format json``)."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources.rocprof._rocpd import is_rocpd, read_rocpd
    from tracekit.sources.rocprof._rocprof_json import is_rocprof, read

__getattr__, __dir__ = lazily(__name__)
