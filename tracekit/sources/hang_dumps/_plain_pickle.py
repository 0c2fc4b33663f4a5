"""Pickles of plain values: numbers, texts, lists, tuples and dicts, and nothing that runs code."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from tracekit.errors import DamagedTraceError, UnsupportedTraceError

_PLAIN_OPCODES = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE "
    "EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS "
    "BINPUT BINGET LONG_BINPUT LONG_BINGET"
)
"""Opcodes that make plain values. PyTorch's C++ pickler (protocol 2) writes no others.
None of them names a class or calls anything."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that finds no class, were an opcode to ask for one."""

    def find_class(self, module: str, name: str, /) -> Any:
        raise UnsupportedTraceError(f"the pickle asks for {module}.{name}")


def read_plain_pickle(data: bytes, where: str) -> Any:
    """Return the plain values of a pickle.

    Each opcode is looked at before the first is carried out.

    Parameters
    ----------
    data
        The pickle.
    where
        What to call it in messages.

    Raises
    ------
    UnsupportedTraceError
        If an opcode stands in it that could run code.
    DamagedTraceError
        If it is cut, or no pickle.
    """
    plain = frozenset(_PLAIN_OPCODES.split())
    try:
        foreign = next(
            (op.name for op, _, _ in pickletools.genops(data) if op.name not in plain), None
        )
        if foreign is None:
            return _PlainUnpickler(io.BytesIO(data)).load()
    except (ValueError, EOFError, KeyError, IndexError, TypeError, pickle.UnpicklingError) as error:
        raise DamagedTraceError(f"{where} is no whole pickle ({error})") from error
    raise UnsupportedTraceError(
        f"{where} is a pickle that could run code (opcode {foreign})",
        "a dump of the flight recorder holds none; nothing of it was carried out",
    )
