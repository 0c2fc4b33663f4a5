"""Output of a command: the formats of an answer, and writing it to a file or standard output."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import tracekit
from tracekit import present
from tracekit.errors import UsageError
from tracekit.support.files import write_whole

if TYPE_CHECKING:
    import polars as pl

    from tracekit.model import Answer


class Format(StrEnum):
    """The formats in which an answer can be written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    MARKDOWN = "markdown"
    HTML = "html"
    SARIF = "sarif"
    JUNIT = "junit"


EVERYWHERE = (
    Format.TABLE, Format.JSON, Format.CSV, Format.PARQUET, Format.MARKDOWN, Format.HTML
)  # fmt: skip
"""Formats that every answer has; the others are for findings only."""
_ENDINGS = {
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".md": Format.MARKDOWN,
    ".txt": Format.TABLE,
    ".html": Format.HTML,
    ".sarif": Format.SARIF,
    ".xml": Format.JUNIT,
}
_ASK_FOR_COLOURS = {"FORCE_COLOR", "TTY_COMPATIBLE"}
"""Environment variables that enable colours without a terminal."""
_SQLITE = b"SQLite format 3\0"


@dataclass(frozen=True)
class Target:
    """Format and file of the output; `path` None is standard output.

    Tables on a terminal or a page have short kernel names, unless `full_names`. On a terminal the
    notes state how the values were found only with `verbose`; in a file or a pipe they always do.
    """

    format: Format
    path: Path | None
    full_names: bool = False
    verbose: bool = False

    @property
    def is_for_readers(self) -> bool:
        """True if the output is a table on standard output."""
        return self.path is None and self.format is Format.TABLE

    @classmethod
    def of(
        cls,
        wanted: Format | None,
        path: Path | None,
        formats: Sequence[Format] = EVERYWHERE,
        *,
        full_names: bool = False,
        verbose: bool = False,
    ) -> "Target":
        """Return the target that a user chose, in one of the formats `formats`.

        Raises
        ------
        UsageError
            If the file cannot be written, or the answer does not have that format.
        """
        ending = "" if path is None else path.suffix.lower()
        form = _ENDINGS.get(ending, Format.TABLE)
        target = cls(
            wanted or (form if form in formats else Format.TABLE), path, full_names, verbose
        )
        if target.format not in formats:
            raise UsageError(
                f"cannot write this answer as {target.format}", f"there is {', '.join(formats)}"
            )
        if path is not None:
            with _writing(path):
                _check_file(path)
            if wanted is None and ending and ending not in _ENDINGS:
                known = ", ".join(_ENDINGS)
                raise UsageError(
                    f"no format has the ending of {path}", f"end it on {known}, or give --format"
                )
        elif target.format is Format.PARQUET and (sys.stdout.isatty() or _binary() is None):
            takes = "a terminal" if sys.stdout.isatty() else "text"
            raise UsageError(
                f"parquet is binary and standard output is {takes}",
                "name a file with --output, or pipe it",
            )
        return target

    def write(self, answer: "Answer") -> None:
        """Render an answer in the format, and write it to the file or to standard output."""
        content = self._render(answer)
        if self.path is not None:
            with _writing(self.path):
                write_whole(self.path, content.encode() if isinstance(content, str) else content)
            return
        if isinstance(content, str) and self.format is Format.CSV and sys.stdout.isatty():
            content = _without_controls(content)
        _print(content)

    def write_text(self, text: str) -> None:
        """Write a text to the target's file."""
        if self.path is not None:
            with _writing(self.path):
                write_whole(self.path, text.encode())

    def _render(self, answer: "Answer") -> str | bytes:
        parts = list(answer.parts.values()) or [answer]
        ways: dict[Format, Callable[[], str | bytes]] = {
            Format.JSON: lambda: present.to_json(
                answer.command,
                answer.run,
                answer.meta,
                answer.rows,
                answer.parts,
                {name: answer.tables[name] for name in answer.listed},
            ),
            Format.CSV: lambda: present.to_csv(answer.rows),
            Format.PARQUET: lambda: present.to_parquet(answer.rows),
            Format.MARKDOWN: lambda: "\n".join(map(self._markdown, parts)),
            Format.TABLE: lambda: "\n".join(map(self._table, parts)),
            Format.HTML: lambda: _page(answer),
            Format.SARIF: lambda: present.to_sarif(answer, tracekit.__version__),
            Format.JUNIT: lambda: present.to_junit(answer),
        }
        return ways[self.format]()

    def _readable(self, answer: "Answer") -> "pl.DataFrame":
        rows = answer.readable_rows
        return rows if self.full_names else present.with_readable_names(rows, answer.every)

    def _markdown(self, answer: "Answer") -> str:
        return present.to_markdown(
            self._readable(answer), answer.meta, answer.title, is_whole=answer.is_whole
        )

    def _table(self, answer: "Answer") -> str:
        width, colours = _terminal() if self.path is None else (None, None)
        if answer.as_records:
            return present.records(
                self._readable(answer),
                present.with_headline(answer),
                width=width,
                colours=colours,
                empty=answer.empty,
            )
        return present.terminal(
            self._readable(answer),
            present.with_headline(answer),
            answer.title,
            width=width,
            colours=colours,
            empty=answer.empty,
            is_whole=answer.is_whole,
            verbose=self.verbose or width is None,
        )


def _without_controls(text: str) -> str:
    """Remove control characters, which a terminal could interpret."""
    from tracekit.present import printable

    return "".join(f"{printable(line)}\n" for line in text.splitlines())


def _page(answer: "Answer") -> str:
    from tracekit.present import pages

    return pages.answer_page(answer)


def _print(content: str | bytes) -> None:
    binary = _binary()
    if binary is None:
        sys.stdout.write(str(content))
        return
    if isinstance(content, str):
        content = content.encode(sys.stdout.encoding, errors="replace")
    binary.write(content)
    binary.flush()


def _binary() -> BinaryIO | None:
    """Return standard output as a binary stream; None in a notebook, which takes text only."""
    return getattr(sys.stdout, "buffer", None)


def _terminal() -> tuple[int | None, str | None]:
    """Return width and colour system of standard output; None for each that it lacks.

    Piped output is never shortened; it has colours only if FORCE_COLOR is set.
    """
    if not sys.stdout.isatty() and not _ASK_FOR_COLOURS & set(os.environ):
        return None, None  # which rich would find out too, but it takes long to load
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
    """Prefix errors of writing with the name of the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path}, {error.strerror}", "choose another file with --output"
        ) from error
