"""Loops as machine code: loaded from the cache, or else compiled by Numba."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from tracekit.errors import UsageError
from tracekit.support import native
from tracekit.support.inner import PARTS, plain

P = ParamSpec("P")
R = TypeVar("R")

_LOG = logging.getLogger("tracekit")
_LOCK = threading.RLock()
_PACKAGE = Path(__file__).parents[1]
_UNCOUNTED: Any = {"_nrt": False}
"""Option of Numba: loops create no arrays, so references need not be counted in inner calls."""
_Run: TypeAlias = Callable[[native.Arguments, tuple[Any, ...]], Any]
"""Function that runs a loop, given its arguments flattened and as they are."""


class Compiled:
    """A loop as machine code, compiled at most once per installation and types of arguments.

    Parameters
    ----------
    loop
        Python function of the loop.
    """

    def __init__(self, loop: Callable[..., Any]) -> None:
        self._loop = loop
        self.rows = 0  # that it was asked for, in this process
        self._known: dict[str, _Run] = {}
        self._missing: set[str] = set()  # types for which the cache had no code

    def __call__(self, *arguments: Any) -> Any:
        """Run the loop as machine code."""
        by_numba = native.has_compiler()
        try:
            taken = native.arguments(arguments)
            if run := self._found(taken) or (self._made(taken, arguments) if by_numba else None):
                return run(taken, arguments)
        except native.UnfitError:
            if by_numba:
                return kept(self._loop)(*arguments)
        _tell_that_it_is_slow()
        return self._loop(*arguments)

    def if_kept(self, *arguments: Any) -> Any:
        """Run the loop's cached machine code; if none is cached, run the loop as plain Python."""
        with suppress(native.UnfitError):
            taken = native.arguments(arguments)
            known = self._known.get(taken.types)
            if run := known or (taken.types not in self._missing and self._found(taken)):
                return run(taken, arguments)
            self._missing.add(taken.types)
        return plain(self._loop)(*arguments)

    def _found(self, taken: native.Arguments) -> _Run | None:
        """Return a function that runs the loop's cached machine code; None if none is cached."""
        if run := self._known.get(taken.types):
            return run
        with _LOCK:  # loops may be wanted by several threads at once
            if run := self._known.get(taken.types):
                return run
            code = native.find(self._loop, taken.types)
            return self._linked(taken.types, code) if code else None

    def _made(self, taken: native.Arguments, arguments: Any) -> _Run:
        """Compile the loop, and return a function that runs it."""
        with _LOCK, native.alone(self._loop, taken.types):
            if run := self._found(taken):  # another thread or process was faster
                return run
            code = native.extracted(_compile(self._loop, arguments), taken.codes)
            if code is not None:
                native.keep(self._loop, taken.types, code)
                return self._linked(taken.types, code)
            by_numba = kept(self._loop)
            return self._known.setdefault(taken.types, lambda _, arguments: by_numba(*arguments))

    def _linked(self, types: str, code: native.Code) -> _Run:
        address = native.link(code)
        return self._known.setdefault(
            types, lambda taken, _: native.call(address, taken, returns=code.returns)
        )


@cache
def _tell_that_it_is_slow() -> None:
    """Log once that loops run as plain Python, so that the work is slower."""
    _LOG.warning(
        "this trace needs a loop that the release lacks: pip install 'tracekit[compiler]' is faster"
    )


@cache
def _tell_that_it_compiles() -> None:
    """Log once, where stderr is a terminal, that loops are compiled, which takes some seconds."""
    if sys.stderr.isatty():
        _LOG.warning("compiling loops for this installation, once: some ten seconds")


def _compile(loop: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return Numba's compilation result of a loop for arguments of the types of `arguments`."""
    _tell_that_it_compiles()
    compiler: Any = _numba().njit
    _tell_of_parts()
    types = tuple(map(_type, arguments))
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # what calls Python is not kept
    dispatcher = compiler(**bare, **_UNCOUNTED)(loop)
    dispatcher.compile(types)
    return dispatcher.overloads[types]


def _numba() -> Any:
    """Import Numba and return it; this takes longer than reading a small trace.

    Raises
    ------
    UsageError
        If its settings would prevent compiling, or come from a file that other users can write.
    """
    settings = Path(".numba_config.yaml")
    if settings.exists():  # as a folder of traces may hold; Numba follows it before it is asked
        raise UsageError(
            f"{settings.absolute()} would change how Numba compiles the loops of tracekit",
            "run tracekit in another folder, or remove it",
        )
    import numba  # noqa: PLC0415

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise UsageError("loops have to be compiled, and NUMBA_DISABLE_JIT forbids it", "unset it")
    return numba


def _type(one: Any) -> Any:
    """Return Numba's name for the type of an argument."""
    from numba import from_dtype, types  # noqa: PLC0415

    if isinstance(one, tuple):
        together: Any = types.BaseTuple.from_types
        return together(tuple(map(_type, one)), type(one))
    if hasattr(one, "dtype") and one.ndim:
        # Machine code is the same whether or not an array may be written to.
        return types.Array(from_dtype(one.dtype), one.ndim, "C")
    return types.boolean if isinstance(one, bool) else types.int64


def _tell_of_parts() -> None:
    """Register with Numba the functions that compiled loops may call."""
    from numba.extending import overload  # noqa: PLC0415

    while PARTS:
        part = PARTS.pop()
        # A call would pass each array as seven numbers, and tuples of arrays as dozens. What is
        # called from C is code once more.
        options: Any = {**_UNCOUNTED, "forceinline": True, "no_cfunc_wrapper": True}
        overload(part, strict=False, jit_options=options)(_itself(part))


@cache
def kept(loop: Callable[P, R]) -> Callable[P, R]:
    """Return `loop` compiled by Numba, with a cache in a folder that only this user can write."""
    numba = _numba()
    compiler, folder = numba.njit, numba.config.CACHE_DIR
    _tell_of_parts()
    with suppress(RuntimeError):  # neither this package nor the user's cache can be written
        if not folder or Path(folder).is_absolute():
            dispatcher = compiler(cache=True, nogil=True, **_UNCOUNTED)(loop)
            if _is_cache_closed(Path(dispatcher.stats.cache_path)):
                return cast("Callable[P, R]", dispatcher)
    return cast("Callable[P, R]", compiler(nogil=True, **_UNCOUNTED)(loop))


def _is_cache_closed(folder: Path) -> bool:
    """Test whether only this user can write a folder: Numba unpickles files that it finds there."""
    if folder.is_relative_to(_PACKAGE):
        return True
    try:
        return all(map(native.is_closed, (folder, *folder.iterdir())))
    except OSError:  # a file that another process has just replaced
        return False


def _itself(part: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_: part
