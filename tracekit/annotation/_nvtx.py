"""Write NVTX ranges through NVTX's C interface, without the Python package nvtx.

A profiler listens by a library that an environment variable names. It asks for tables of function
pointers and fills them in, as it does for the NVTX headers in C programs. Releases of the package
nvtx differ in the profilers that record them, and a program need not have it installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

DOMAIN = "tracekit"

_CALLBACKS, _VERSION_INFO = 1, 3
_CORE2 = 5
_SLOTS = {1: 16, 2: 9, 3: 15, 4: 7, _CORE2: 16, 6: 7}
"""Number of functions in each module of NVTX, plus one, since they are counted from 1."""
_START, _END, _PUSH, _POP, _REGISTER, _CREATE, _INITIALIZE = 2, 3, 4, 5, 10, 12, 15
_NVTX_VERSION = 3
_ASCII, _REGISTERED = 1, 3

_GetTable = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
_GetModule = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint)
)
_SetVersion = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
# These hold Python's lock: to let go of it and take it again costs more than the call.
_Create = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
_Register = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_Push = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Pop = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_Start = ctypes.PYFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p)
_End = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)
_Initialize = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class _CallbackTable(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("get_module", _GetModule)]


class _VersionTable(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("set_version", _SetVersion),
    ]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("payload", ctypes.c_uint64),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_void_p),
    ]


class NvtxRanges:
    """Writer of NVTX ranges, in a domain of tracekit's.

    Parameters
    ----------
    initialize
        Function of a profiler's library that fills in NVTX's tables of function pointers.

    Raises
    ------
    OSError
        If the profiler does not support ranges in domains.
    """

    def __init__(self, initialize: Callable[[Any], Any]) -> None:
        self._tables = _Tables()
        initialize(self._tables.get)
        if start := self._tables.function(_INITIALIZE, _Initialize):
            start(None)
        functions = [
            self._tables.function(slot, kind)
            for slot, kind in ((_CREATE, _Create), (_REGISTER, _Register), (_PUSH, _Push),
                               (_POP, _Pop), (_START, _Start), (_END, _End))
        ]  # fmt: skip
        if not all(functions):
            raise OSError("the profiler takes no NVTX ranges")
        create, self._register, self._push, self._pop, self._start, self._end = functions
        self._domain = create(DOMAIN.encode())
        self._known: dict[str, tuple[_Attributes, int]] = {}

    @classmethod
    def of_profiler(cls, library: str) -> NvtxRanges:
        """Return a writer of ranges for the profiler whose library has this path.

        Raises
        ------
        OSError
            If the library cannot be loaded, or the profiler does not support ranges in domains.
        """
        initialize = ctypes.CDLL(library).InitializeInjectionNvtx2
        initialize.argtypes = [_GetTable]
        return cls(initialize)

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        self._push(self._domain, self._address(name))

    def pop(self) -> None:
        """Close the innermost range of this thread."""
        self._pop(self._domain)

    def start(self, name: str) -> int:
        """Open a start/end range, which applies to all threads; return its handle."""
        return int(self._start(self._domain, self._address(name)))

    def start_once(self, name: str) -> int:
        """Open a start/end range whose name, used only once, is not cached; return its handle."""
        attributes = _attributes(_ASCII)
        text = ctypes.create_string_buffer(name.encode())
        attributes.message = ctypes.addressof(text)
        return int(self._start(self._domain, ctypes.addressof(attributes)))

    def end(self, opened: int) -> None:
        """Close the start/end range with the handle `opened`."""
        self._end(self._domain, opened)

    def mark(self, name: str) -> None:
        """Write a mark, as a range of no length, since some profilers drop marks."""
        self.push(name)
        self.pop()

    def _address(self, name: str) -> int:
        """Return the address of the NVTX attributes for a name, registered on first use."""
        known = self._known.get(name)
        if known is None:
            attributes = _attributes(_REGISTERED)
            attributes.message = self._register(self._domain, name.encode())
            known = self._known[name] = attributes, ctypes.addressof(attributes)
        return known[1]


class _Tables:
    """NVTX tables of function pointers, which a profiler fills in; kept alive for it."""

    def __init__(self) -> None:
        self._slots = {module: (ctypes.c_void_p * count)() for module, count in _SLOTS.items()}
        self._lists = {module: _addresses(slots) for module, slots in self._slots.items()}
        self._get_module = _GetModule(self._module)
        self._set_version = _SetVersion(lambda _: None)
        self._callbacks = _CallbackTable(ctypes.sizeof(_CallbackTable), self._get_module)
        self._version = _VersionTable(
            ctypes.sizeof(_VersionTable), _NVTX_VERSION, 0, self._set_version
        )
        self.get = _GetTable(self._table)

    def function(self, slot: int, kind: Callable[[int], Any]) -> Any:
        """Return the function in a slot of the tables as ctypes type `kind`; None if empty."""
        address = self._slots[_CORE2][slot]
        return kind(address) if address else None

    def _table(self, which: int) -> int | None:
        tables = {_CALLBACKS: self._callbacks, _VERSION_INFO: self._version}
        return ctypes.addressof(tables[which]) if which in tables else None

    def _module(self, module: int, table: Any, count: Any) -> int:
        if module not in self._lists:
            return 0
        if table:
            table[0] = ctypes.addressof(self._lists[module])
        if count:
            count[0] = len(self._lists[module])
        return 1


def _addresses(slots: Any) -> Any:
    """Return an array of the addresses of slots, as NVTX has it: null for slot 0 and at the end."""
    size = ctypes.sizeof(ctypes.c_void_p)
    begin = ctypes.addressof(slots)
    places = [None, *(begin + size * index for index in range(1, len(slots))), None]
    return (ctypes.c_void_p * len(places))(*places)


def _attributes(message_type: int) -> _Attributes:
    return _Attributes(
        version=_NVTX_VERSION, size=ctypes.sizeof(_Attributes), message_type=message_type
    )
