"""Names of packages that are loaded on first use, and modules while there is other work to do."""

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
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    A name comes from the module that the package imports it from under ``if TYPE_CHECKING:``, as
    editors and type checkers read it, so that no second list says where names are: ``__all__`` is
    made of it too. Python does not keep what it skips: the package's source is read when a name is
    first wanted.

    Parameters
    ----------
    package
        Its name.
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
    """Return by each name that a package imports for type checkers the module it comes from.

    By pattern, as parsing the dozen packages that a command uses would take a tenth of its time.
    """
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    imports = _IMPORT.findall(_COMMENT.sub("", source))
    return {name: home for home, *names in imports for name in _NAME.findall(" ".join(names))}


def load_beside(module: str) -> None:
    """Begin to import a module in a thread; whoever imports it meanwhile waits for that."""
    threading.Thread(target=_load, args=(module,), daemon=True).start()


def _load(module: str) -> None:
    with suppress(Exception):  # whoever needs it is told of it
        importlib.import_module(module)
