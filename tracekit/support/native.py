"""Cache of compiled loops as machine code, loaded without the compiler.

Importing Numba takes longer than reading a usual trace, and compiling takes seconds. LLVM alone, a
dependency of Numba, links compiled code in milliseconds. So the code of a loop, for given types of
arguments, is stored in a file whose name identifies all that it depends on: the source of the loop
and of functions it calls, the types, and the processor. Files are found by this name and not by
time, so those shipped with a package work wherever it is installed. In a release they are linked
into one library, which needs no LLVM (`.ci/release.py`). A faulty file is ignored.

Code in the installed package is trusted like its modules. Code in a cache is run only if nobody but
the user and root can have written it (`is_closed`).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

_VERSION = b"1"
"""Version of the files' format, and of the way in which their code is called."""
_SUFFIX = ".loop"
_DIGEST_BYTES = 32
_FOLDER = Path(__file__).resolve().parents[1] / "loops"
"""Folder of code compiled with the package, for any processor of its kind."""
_LIBRARY_NAME, _INDEX_NAME = "loops.so", "loops.json"
"""Names of the library with this code, and of its index: file of a loop -> symbol, and whether it
returns a value."""
_BESIDE = Path(__file__).parent / "__pycache__"
"""Folder in which Python caches the package's bytecode, too."""
_LINKS_HERE = sys.platform == "linux" and platform.machine() == "x86_64"
"""Whether linking is supported on this machine; on others Numba links its own code."""
_ANY_PROCESSOR = "x86_64-unknown-linux-gnu generic"
_LOCKS = "loops.lock"
"""Name of the file in which a process locks the loops that it compiles."""
_PLACE_DIGITS = 8
"""Hexadecimal digits of the position of a loop's lock."""
_LIBRARY = frozenset({"memcpy", "memmove", "memset"})
"""Functions of system libraries that code may call."""


class UnfitError(Exception):
    """Arguments whose types only Numba can pass to a compiled loop."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a compiled loop, flattened into pointers, integers and booleans."""

    types: str
    """Description of all types in one word."""
    codes: str
    """One letter per value: ``p`` pointer, ``q`` integer, ``b`` boolean."""
    values: list[int]
    """The values."""


def arguments(passed: Sequence[Any]) -> Arguments:
    """Flatten arguments as Numba does: tuples into items, arrays into pointers and sizes.

    The field names of a named tuple are part of its type, since the loop accesses them by name.

    Raises
    ------
    UnfitError
        If one is neither an integer, a boolean, a contiguous array, nor a tuple of these; or if
        code cannot be linked on this kind of machine.
    """
    if not _LINKS_HERE:
        raise UnfitError
    types: list[str] = []
    codes: list[str] = []
    values: list[int] = []
    _take_apart(passed, types, codes, values)
    return Arguments("".join(types), "".join(codes), values)


def _take_apart(
    values_given: Sequence[Any], types: list[str], codes: list[str], values: list[int]
) -> None:
    for one in values_given:
        if isinstance(one, np.ndarray):
            flags = one.flags
            if one.ndim == 0 or not (flags.c_contiguous and flags.aligned):
                raise UnfitError
            types.append(f"{one.dtype.str}{one.ndim}")
            codes.append("ppqqp" + "qq" * one.ndim)
            data = one.__array_interface__["data"][0]
            values += (0, 0, one.size, one.itemsize, data, *one.shape, *one.strides)
        elif isinstance(one, tuple):
            types.append(f"{' '.join(getattr(one, '_fields', ()))}(")
            _take_apart(one, types, codes, values)
            types.append(")")
        elif isinstance(one, bool):
            types.append("b")
            codes.append("b")
            values.append(one)
        elif isinstance(one, int | np.integer):
            types.append("q")
            codes.append("q")
            values.append(int(one))
        else:
            raise UnfitError


def call(address: int, taken: Arguments, *, returns: bool) -> int | None:
    """Call machine code at `address`; return its integer, None if it returns nothing."""
    result, trouble = ctypes.c_int64(), ctypes.c_void_p()
    # Numba's own convention: where the result goes, where errors go, and the arguments.
    failed = _function(address, taken.codes)(
        ctypes.addressof(result), ctypes.addressof(trouble), *taken.values
    )
    if failed:
        raise ArithmeticError("a compiled loop failed, as at a division by 0")
    return result.value if returns else None


_C_TYPES = {"p": ctypes.c_void_p, "q": ctypes.c_int64, "b": ctypes.c_bool}


@cache
def _function(address: int, codes: str) -> Callable[..., int]:
    types = [ctypes.c_void_p, ctypes.c_void_p, *(_C_TYPES[code] for code in codes)]
    # A call through this holds no lock on the interpreter.
    return ctypes.CFUNCTYPE(ctypes.c_int32, *types)(address)


@dataclass(frozen=True)
class Code:
    """Machine code of a loop for given types: object file, symbol, and type of the result."""

    symbol: str
    returns: bool
    machine_code: bytes

    def packed(self) -> bytes:
        """Return the code as the content of a file."""
        content = b"%d %s\n%s" % (self.returns, self.symbol.encode(), self.machine_code)
        return hashlib.sha256(content).digest() + content

    @classmethod
    def unpacked(cls, file: bytes) -> Code | None:
        """Return the code in the content of a file; None if it is damaged."""
        digest, content = file[:_DIGEST_BYTES], file[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            return None
        head, _, machine_code = content.partition(b"\n")
        returns, _, symbol = head.decode().partition(" ")
        return cls(symbol, returns == "1", machine_code)


def find(loop: Callable[..., Any], types: str) -> Code | None:
    """Return the cached machine code of a loop for the argument types `types`, or None.

    The code is compiled for this processor, or for any processor of its kind.
    """
    symbol, returns = _library_index().get(_name(loop, types, _ANY_PROCESSOR), ("", False))
    if symbol:
        return Code(symbol, returns, b"")
    places = [(_ANY_PROCESSOR, [_FOLDER])]
    if has_compiler():
        places.insert(0, (_processor(), _own_folders()))
    for processor, folders in places if find_spec("llvmlite") else ():
        name = _name(loop, types, processor)
        for folder in folders if name else []:
            path = folder / name
            with suppress(OSError):
                if _is_packaged(folder) or is_closed(path):
                    code = Code.unpacked(path.read_bytes())
                    if code is not None:
                        return code
    return None


@cache
def has_compiler() -> bool:
    """Test whether Numba, which compiles loops, is installed."""
    return find_spec("numba") is not None


@cache
def _library_index() -> dict[str, tuple[str, bool]]:
    """Return the loops in the package's compiled library: name -> (symbol, returns a value)."""
    try:
        index: dict[str, tuple[str, bool]] = json.loads((_FOLDER / _INDEX_NAME).read_bytes())
    except FileNotFoundError:
        return {}
    return index if _LINKS_HERE else {}


def keep(loop: Callable[..., Any], types: str, code: Code) -> None:
    """Store the machine code of a loop, compiled for this processor, in the cache if possible."""
    name = _name(loop, types, _processor())
    for folder in _made_folders() if name else []:
        with suppress(OSError):
            _write(folder / name, code.packed())
            return


@contextmanager
def alone(loop: Callable[..., Any], types: str) -> Iterator[None]:
    """Hold a lock while compiling a loop, so that another process that needs it waits.

    Without a lock, all processes of a first ingest would compile the same loops at the same time.
    Where files cannot be locked, no lock is held. A process that ends gives up its locks.
    """
    with ExitStack() as held:
        name = _name(loop, types, _processor())
        for folder in _made_folders() if name else []:
            with suppress(OSError, ImportError):
                import fcntl  # noqa: PLC0415 - not on every system

                file = held.enter_context((folder / _LOCKS).open("ab"))
                # One byte of the file for each loop.
                place = int(hashlib.sha256(name.encode()).hexdigest()[:_PLACE_DIGITS], 16)
                fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
                break
        yield


def _made_folders() -> Iterator[Path]:
    """Make the folders of this user's code, and yield those into which only this user can write."""
    for folder in _own_folders():
        with suppress(OSError):
            folder.mkdir(exist_ok=True) if _is_packaged(folder) else _make(folder)
            if _is_packaged(folder) or is_closed(folder):
                yield folder


def keep_for_all(loop: Callable[..., Any], types: str, code: Code) -> None:
    """Store the machine code of a loop in the package, compiled for any processor of this kind."""
    if name := _name(loop, types, _ANY_PROCESSOR):
        _FOLDER.mkdir(parents=True, exist_ok=True)
        _write(_FOLDER / name, code.packed())


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)


def _own_folders() -> list[Path]:
    """Return the folders in which this user's code is stored and searched."""
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(folder)]
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not home.is_absolute():
        home = Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - raises nothing without a home
    return [_BESIDE, home / "tracekit"]


def _is_packaged(folder: Path) -> bool:
    return folder in (_FOLDER, _BESIDE)


def _make(folder: Path) -> None:
    """Create a folder, and its parents, accessible to this user only."""
    if folder.is_absolute() and not folder.exists():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def is_closed(path: Path) -> bool:
    """Test whether only this user and root can write a file, or into a folder.

    This is checked before a file is run or unpickled, since a digest in the file proves nothing.
    """
    if not path.is_absolute():
        return False
    end = Path(os.path.realpath(path, strict=True))  # `Path.resolve` says something else of a loop
    return all(map(_is_closed_way, (end, *_links(path))))


def _links(path: Path) -> Iterator[Path]:
    """Yield each symbolic link on the way to a path."""
    here, ahead = Path(path.anchor), [*reversed(path.parts)]
    while ahead:
        part = ahead.pop()
        step = here.parent if part == ".." else here / part
        if step.is_symlink():
            yield step
            ahead += reversed(step.readlink().parts)
        else:
            here = step


def _is_closed_way(path: Path) -> bool:
    """Check a path and its parent folders, without resolving links."""
    itself = {path, path.parent} if path.is_file() else {path}
    others_enter = True
    for each in (*reversed(path.parents), path):
        status = each.lstat()
        mode = status.st_mode
        if status.st_uid not in {0, os.geteuid()}:
            return False
        if not stat.S_ISLNK(mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
            sticky = mode & stat.S_ISVTX  # what is in it, only its owner removes
            if each in itself or (others_enter and not sticky):
                return False
        others_enter &= not stat.S_ISDIR(mode) or bool(mode & (stat.S_IXGRP | stat.S_IXOTH))
    return True


@cache
def _name(loop: Callable[..., Any], types: str, processor: str) -> str:
    """Return the file name for a loop's machine code; empty if its source cannot be read."""
    made_of = hashlib.sha256(_VERSION)
    try:
        parts = sorted(_made_of(loop))
    except (OSError, AttributeError):
        return ""
    for part in (*parts, types.encode(), sys.byteorder.encode(), processor.encode()):
        made_of.update(b"%d:%s" % (len(part), part))
    return f"{loop.__name__}-{made_of.hexdigest()[:40]}{_SUFFIX}"


def _made_of(loop: Any) -> set[bytes]:
    """Return what a loop's machine code depends on, as bytes: module sources, and constants."""
    parts: set[bytes] = set()
    functions, seen = [loop], {loop}
    while functions:
        function = functions.pop()
        parts.add(_source(function.__module__))
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, FunctionType) and value not in seen:
                seen.add(value)
                functions.append(value)
            elif isinstance(value, int | float):
                parts.add(f"{name}={value!r}".encode())
    return parts


@cache
def _source(module: str) -> bytes:
    return Path(str(sys.modules[module].__file__)).read_bytes()


@cache
def _processor() -> str:
    from llvmlite import binding as llvm  # noqa: PLC0415 - not needed by small traces

    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"


_SEEN: Counter[str] = Counter()
"""Number of times that code with a symbol was linked."""


def link(code: Code) -> int:
    """Load code into this process, and return its address."""
    if not code.machine_code:
        library = ctypes.CDLL(str(_FOLDER / _LIBRARY_NAME))
        return ctypes.cast(library[code.symbol], ctypes.c_void_p).value or 0
    from llvmlite import binding as llvm  # noqa: PLC0415 - not needed by small traces

    # What bears the symbol of other code would be taken for that.
    linker = _linker(_SEEN[code.symbol])
    _SEEN[code.symbol] += 1
    linker.add_object_file(llvm.ObjectFileRef.from_data(code.machine_code))
    linker.finalize_object()
    return int(linker.get_function_address(code.symbol))


@cache
def _linker(_number: int) -> Any:
    """Return a linker for machine code; setting it up takes as long as linking seven loops."""
    from llvmlite import binding as llvm  # noqa: PLC0415 - not needed by small traces

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def extracted(compiled: Any, codes: str) -> Code | None:
    """Return the machine code of Numba's result; None if it cannot be called without Numba.

    Parameters
    ----------
    compiled
        Compilation result of Numba.
    codes
        Letters of the arguments, as in `Arguments`.
    """
    from numba import types  # noqa: PLC0415 - loads the compiler

    library, symbol = compiled.library, compiled.fndesc.llvm_func_name
    result = compiled.signature.return_type
    functions = {function.name: function for function in library.get_defined_functions()}
    if symbol not in functions or result not in (types.none, types.int64):
        return None
    passed = [str(argument.type) for argument in functions[symbol].arguments]
    calls = set(re.findall(r'^declare [^@]*@"?([^"(]+)', library.get_llvm_str(), re.MULTILINE))
    others = {name for name in calls - _LIBRARY if not name.startswith("llvm.")}
    if others or len(passed) != 2 + len(codes) or not all(map(_fits, codes, passed[2:])):
        return None
    _, _, (machine_code, _) = library.serialize_using_object_code()
    return Code(symbol, result != types.none, machine_code)


def _fits(code: str, passed: str) -> bool:
    if code == "p":
        return passed == "ptr" or passed.endswith("*")
    return passed == {"q": "i64", "b": "i8"}[code]
