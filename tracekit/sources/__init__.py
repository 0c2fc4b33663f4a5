"""Input formats: a file is recognised by its content, never by its name; a folder by its tables."""

from tracekit.sources._recognise import (
    Progress,
    check_readable,
    content_files,
    open_report,
    read,
)  # fmt: skip
from tracekit.sources._smi import read_smi

__all__ = ["Progress", "check_readable", "content_files", "open_report", "read", "read_smi"]
