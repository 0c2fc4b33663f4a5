"""An export that is being read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tracekit.sources._tables import ExportFile
from tracekit.sources.nsys._ids import Strings
from tracekit.sources.nsys._metadata import Metadata, read_metadata


@dataclass(frozen=True)
class Export:
    """An export file with its metadata and strings."""

    file: ExportFile
    metadata: Metadata
    strings: Strings

    @classmethod
    def of(cls, file: ExportFile) -> Self:
        """Read what the other tables need of `file`."""
        return cls(file, read_metadata(file), Strings(file))
