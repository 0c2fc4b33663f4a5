"""Input formats: a file is recognised by its content, never by its name."""

from tracekit.sources._recognise import Progress, check_readable, open_report, read
from tracekit.sources._smi import read_smi

__all__ = ["Progress", "check_readable", "open_report", "read", "read_smi"]
