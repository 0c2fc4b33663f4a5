"""Input formats: a file is recognised by its content, never by its name; a folder by its tables."""

from tracekit.sources._format import Format, Opening
from tracekit.sources._formats import FORMATS
from tracekit.sources._recognise import check_readable, content_files, open_report, read
from tracekit.sources._smi import read_smi

__all__ = [
    "FORMATS",
    "Format",
    "Opening",
    "check_readable",
    "content_files",
    "open_report",
    "read",
    "read_smi",
]
