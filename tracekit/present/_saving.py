"""Write figures to files: HTML pages, plotly's JSON, and images."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.errors import MissingDataError, UsageError
from tracekit.present._figures import NOTHING, RECORD_WITH
from tracekit.support.files import write_whole
from tracekit.support.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import plotly.graph_objects as go

_IMAGES = (".png", ".svg", ".pdf")
_TEXTS = (".html", ".json")
_PIXELS = 2
_SEVERAL = 2
_OFFLINE = {"mathjax": False}
"""Formulas are off: their code would be fetched from the network."""
_IS_SHARED: ContextVar[bool] = ContextVar("is_shared", default=False)
"""Whether one browser is kept running for several figures."""
_LOGGERS = ("kaleido", "choreographer", "chrome_wrapper")
_CHOOSE = "name a file that ends in .html, .json, .png, .svg or .pdf"


def save_figure(figure: go.Figure, path: str | Path) -> None:
    """Write a figure to a file, in the format of its ending.

    Parameters
    ----------
    path
        File to write: ``.html`` (one self-contained page that works offline), ``.json`` (plotly's
        own format), or ``.png``, ``.svg`` and ``.pdf``, which need the package kaleido and a Chrome
        or Chromium browser.

    Raises
    ------
    UsageError
        If the path has no such ending, if the file cannot be written, or if the package or the
        browser is not there.
    MissingDataError
        If the figure contains no data.
    """
    path = Path(path)
    check_figure_file(path)
    meta = figure.layout.meta or {}
    if (nothing := meta.get(NOTHING)) is not None:
        way = meta.get(RECORD_WITH)
        raise MissingDataError(
            f"there is nothing to draw in {path}: {nothing}",
            f"how to record it: {way}"
            if way
            else "`tracekit info` lists what the run contains, and how to record what it lacks",
        )
    try:
        write_whole(path, _rendered(figure, path))
    except OSError as error:
        raise UsageError(f"cannot write {path}, {error.strerror}", "choose another file") from error


def check_figure_file(path: Path) -> None:
    """Raise `UsageError` where `save_figure` would, before a figure is computed."""
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}, it is a folder", _CHOOSE)
        if not path.parent.is_dir():
            raise UsageError(
                f"cannot write {path}, there is no folder {path.parent}", "create it first"
            )
    except OSError as error:
        raise UsageError(f"cannot write {path}, {error.strerror}", "choose another file") from error
    ending = path.suffix.lower()
    if ending in _IMAGES:
        _require_browser(ending.removeprefix("."))
    elif ending not in _TEXTS:
        kind = f"end in {ending}" if ending else "have no ending"
        raise UsageError(f"cannot write {path}, figures do not {kind}", _CHOOSE)


@contextmanager
def one_browser(paths: Iterable[Path]) -> Iterator[None]:
    """Keep one browser open for drawing several images, since starting it takes longest."""
    if sum(path.suffix.lower() in _IMAGES for path in paths) < _SEVERAL:
        yield
        return
    import kaleido

    with _quiet(*_LOGGERS):
        kaleido.start_sync_server(silence_warnings=True, **_OFFLINE)
        token = _IS_SHARED.set(True)
        try:
            yield
        finally:
            _IS_SHARED.reset(token)
            kaleido.stop_sync_server(silence_warnings=True)


def _require_browser(form: str) -> None:
    try:
        import kaleido  # noqa: F401 - it is to be there
        from choreographer.browsers.chromium import Chromium
    except ImportError as error:
        raise UsageError(
            f"cannot write a figure as {form} without the package kaleido, 1.0 or later",
            "pip install 'tracekit[images]', or name a file that ends in .html",
        ) from error
    if not (os.environ.get("BROWSER_PATH") or Chromium.find_browser(skip_local=False)):
        raise _no_browser(form)


def _no_browser(form: str) -> UsageError:
    return UsageError(
        f"cannot write a figure as {form}, no Chrome or Chromium browser is found",
        "install one, name it in BROWSER_PATH, or name a file that ends in .html",
    )


def _rendered(figure: go.Figure, path: Path) -> bytes:
    ending = path.suffix.lower()
    if ending == ".html":
        from tracekit.present.pages import figure_page

        return figure_page(figure).encode()
    if ending == ".json":
        text: str = figure.to_json()
        return text.encode()
    return _image(figure, ending.removeprefix("."))


def _image(figure: go.Figure, form: str) -> bytes:
    import kaleido
    from choreographer.errors import DevtoolsProtocolError
    from kaleido.errors import ChromeNotFoundError, KaleidoError

    options = {
        "format": form, "width": figure.layout.width, "height": figure.layout.height,
        "scale": _PIXELS if form == "png" else 1,
    }  # fmt: skip
    try:
        with _quiet(*_LOGGERS):
            more = {} if _IS_SHARED.get() else {"kopts": _OFFLINE}
            image: bytes = kaleido.calc_fig_sync(figure.to_dict(), opts=options, **more)
    except ChromeNotFoundError as error:
        raise _no_browser(form) from error
    except (RuntimeError, OSError, KaleidoError, DevtoolsProtocolError) as error:
        raise UsageError(
            f"cannot write a figure as {form}, the browser failed ({printable(str(error))[:200]})",
            "name a file that ends in .html",
        ) from error
    return image


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Silence loggers of packages that report each failed attempt with a traceback."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
