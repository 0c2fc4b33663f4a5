"""Figures as files: pages, plotly's own format, and images."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.present._text import printable
from tracekit.support.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    import plotly.graph_objects as go

_IMAGES = (".png", ".svg", ".pdf")
_PIXELS = 2
_CHOOSE = "name a file that ends in .html, .json, .png, .svg or .pdf"


def save_figure(figure: go.Figure, path: str | Path) -> None:
    """Write a figure to a file, in the format of its ending.

    Parameters
    ----------
    figure
        The figure.
    path
        File to write: ``.html`` (one page that holds all it needs, and works offline), ``.json``
        (plotly's own format), or ``.png``, ``.svg`` and ``.pdf``, which take the package kaleido
        and a Chrome or Chromium browser.

    Raises
    ------
    UsageError
        If the ending is another, if the file cannot be written, or if the package or the browser
        is not there.
    """
    path = Path(path)
    try:
        _check_folder(path)
        write_whole(path, _rendered(figure, path))
    except OSError as error:
        raise UsageError(f"cannot write {path}, {error.strerror}", "choose another file") from error


def _check_folder(path: Path) -> None:
    """Raise at once what would be found out only after the figure is rendered."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}, it is a folder", _CHOOSE)
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}, there is no folder {path.parent}", "create it first"
        )


def _rendered(figure: go.Figure, path: Path) -> bytes:
    ending = path.suffix.lower()
    if ending == ".html":
        from tracekit.present.pages import figure_page

        return figure_page(figure).encode()
    if ending == ".json":
        text: str = figure.to_json()
        return text.encode()
    if ending in _IMAGES:
        return _image(figure, ending.removeprefix("."))
    kind = f"end in {ending}" if ending else "have no ending"
    raise UsageError(f"cannot write {path}, figures do not {kind}", _CHOOSE)


def _image(figure: go.Figure, form: str) -> bytes:
    try:
        import kaleido
        from choreographer.errors import DevtoolsProtocolError
        from kaleido.errors import ChromeNotFoundError, KaleidoError
    except ImportError as error:
        raise UsageError(
            f"cannot write a figure as {form} without the package kaleido, 1.0 or later",
            "pip install 'tracekit[images]', or name a file that ends in .html",
        ) from error
    options = {
        "format": form, "width": figure.layout.width, "height": figure.layout.height,
        "scale": _PIXELS if form == "png" else 1,
    }  # fmt: skip
    try:
        # Formulas are off: their code would be fetched from the network.
        with _quiet("kaleido", "choreographer", "chrome_wrapper"):
            image: bytes = kaleido.calc_fig_sync(
                figure.to_dict(), opts=options, kopts={"mathjax": False}
            )
    except ChromeNotFoundError as error:
        raise UsageError(
            f"cannot write a figure as {form}, no Chrome or Chromium browser is found",
            "install one, name it in BROWSER_PATH, or name a file that ends in .html",
        ) from error
    except (RuntimeError, OSError, KaleidoError, DevtoolsProtocolError) as error:
        raise UsageError(
            f"cannot write a figure as {form}, the browser failed ({printable(str(error))[:200]})",
            "name a file that ends in .html",
        ) from error
    return image


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep what some packages log of each failed attempt, tracebacks and all, off the terminal."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
