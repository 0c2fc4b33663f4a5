"""Import names of a package on first use, and modules in the background."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

_COMMENT, _NAME = re.compile("#.*"), re.compile(r"\w+")
_IMPORT = re.compile(r"^    from (\S+) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` for a package.

    The package's block ``if TYPE_CHECKING:`` lists imports, for editors and type checkers.
    ``__getattr__`` imports a name on first use, from the module listed there. ``__all__`` is made
    from the same list. Python does not run the block, so it is read from the package's source.
    `package` is the name of the package.
    """

    @cache
    def homes() -> dict[str, str]:
        return _checked_imports(package)

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        # Python itself asks for such as ``__path__``, before any name is wanted.
        home = None if name.startswith("__") and name != "__version__" else homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes()})

    return load, names


def _checked_imports(package: str) -> dict[str, str]:
    """Return the names that a package imports for type checkers: name -> module.

    They are found by a pattern, since parsing the dozen packages that a command uses would take a
    tenth of its time.
    """
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    imports = _IMPORT.findall(_COMMENT.sub("", source))
    return {name: home for home, *names in imports for name in _NAME.findall(" ".join(names))}


def load_beside(module: str) -> None:
    """Start importing a module in a thread; other imports of the module wait for it."""
    threading.Thread(target=_load, args=(module,), daemon=True).start()


def _load(module: str) -> None:
    with suppress(Exception):  # whoever needs it is told of it
        importlib.import_module(module)
