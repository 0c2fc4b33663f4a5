"""What a command found, where it goes, and in which format."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit._files import write_whole
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


class Format(StrEnum):
    """Formats that a listing is written in."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    MARKDOWN = "markdown"


_ENDINGS = {
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".md": Format.MARKDOWN,
}
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class Listing:
    """What a command found, for `listing` to write.

    Parameters
    ----------
    command
        The command, as it is typed.
    run
        Name of the run that it concerns, or None.
    rows
        The result.
    meta
        What the rows are measured against.
    title
        Line above the rows where people read them.
    empty
        What to tell people when there are no rows.
    as_records
        Whether people read each row as a block of lines, and not as a line of a table.
    exit_code
        Exit code of the command.
    shown
        The rows as people read them, where these are not all that is known of them.
    """

    command: str
    run: str | None
    rows: "pl.DataFrame"
    meta: "Mapping[str, Any]" = field(default_factory=dict)
    title: str = ""
    empty: str = "no rows"
    as_records: bool = False
    exit_code: int = 0
    shown: "pl.DataFrame | None" = None

    @property
    def for_people(self) -> "pl.DataFrame":
        """The rows as people read them."""
        return self.rows if self.shown is None else self.shown


@dataclass(frozen=True)
class Target:
    """A format, and a file or standard output (`path` is None)."""

    format: Format
    path: Path | None

    @classmethod
    def of(cls, wanted: Format | None, path: Path | None) -> "Target":
        """Return the target that a user asked for.

        Raises
        ------
        UsageError
            If nothing can be written there.
        """
        ending = "" if path is None else path.suffix.lower()
        target = cls(wanted or _ENDINGS.get(ending, Format.TABLE), path)
        if path is not None:
            with _writing(path):
                _check_file(path)
        elif target.format is Format.PARQUET and sys.stdout.isatty():
            raise UsageError(
                "parquet is binary and standard output is a terminal",
                "name a file with --output, or pipe it",
            )
        return target

    def write(self, listing: Listing) -> None:
        """Write a listing."""
        content = self._render(listing)
        if self.path is not None:
            with _writing(self.path):
                write_whole(self.path, content.encode() if isinstance(content, str) else content)
            return
        if isinstance(content, str):
            content = content.encode(sys.stdout.encoding, errors="replace")
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()

    def write_text(self, text: str) -> None:
        """Write a text to the file that is the target."""
        if self.path is not None:
            with _writing(self.path):
                write_whole(self.path, text.encode())

    def _render(self, listing: Listing) -> str | bytes:
        from tracekit import present

        match self.format:
            case Format.JSON:
                return present.to_json(listing.command, listing.run, listing.meta, listing.rows)
            case Format.CSV:
                return present.to_csv(listing.rows)
            case Format.PARQUET:
                return present.to_parquet(listing.rows)
            case Format.MARKDOWN:
                return present.to_markdown(listing.for_people, listing.meta, listing.title)
            case Format.TABLE:
                return self._table(listing)

    def _table(self, listing: Listing) -> str:
        from tracekit import present

        width, colours = _terminal() if self.path is None else (None, None)
        if listing.as_records:
            return present.records(
                listing.for_people, listing.meta, width=width, colours=colours, empty=listing.empty
            )
        return present.terminal(
            listing.for_people,
            listing.meta,
            listing.title,
            width=width,
            colours=colours,
            empty=listing.empty,
        )


def _terminal() -> tuple[int | None, str | None]:
    """Return the width and the colour system of standard output, None each where it has none.

    What is piped is never shortened; it has colours only where FORCE_COLOR asks for them.
    """
    from rich.console import Console

    console = Console(file=sys.stdout)
    width = console.width if sys.stdout.isatty() else None
    return width, None if console.no_color else console.color_system


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"cannot write {path}, it is a folder", "name a file with --output")
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}, there is no folder {path.parent}", "create it first"
        )
    if _is_database(path):
        raise UsageError(
            f"will not overwrite {path}, which is an SQLite database as traces are",
            "choose another name for --output",
        )


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say of any failure that it is `path` that cannot be written."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path}, {error.strerror}", "choose another file with --output"
        ) from error
