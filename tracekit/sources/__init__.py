"""Readers of trace formats, recognised by the content of a file or folder, not by its name."""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.sources._formats import FORMATS, Format, Opening
    from tracekit.sources._recognise import check_readable, content_files, open_report, read
    from tracekit.sources._smi import read_smi

__getattr__, __dir__ = lazily(__name__)
