"""Run a function right after a module has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Installer = Callable[[ModuleType], None]


def when_imported(installers: Mapping[str, Installer]) -> Callable[[], None]:
    """Call a function with each named module: at once, or right after the module is imported.

    Returns
    -------
    A function that cancels the calls for modules not imported yet.
    """
    waiting = dict(installers)
    for name in installers:
        if name in sys.modules:
            waiting.pop(name)(sys.modules[name])
    finder = _Finder(waiting)
    if waiting:
        sys.meta_path.insert(0, finder)
    return finder.give_up


class _Finder(MetaPathFinder):
    """Import hook for modules that functions wait for: it wraps the loader that Python finds."""

    def __init__(self, waiting: dict[str, Installer]) -> None:
        self._waiting = waiting

    def give_up(self) -> None:
        """Forget the functions whose modules have not been imported yet."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, lambda module: self._install(fullname, module))
        return spec

    def _install(self, name: str, module: ModuleType) -> None:
        install = self._waiting.pop(name, None)
        if not self._waiting:
            self.give_up()
        if install is not None:
            install(module)


class _Loader(Loader):
    """Loader that loads a module with its own loader, restores that one, and calls the function."""

    def __init__(self, loader: Any, install: Installer) -> None:
        self._loader = loader
        self._install = install

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._install(module)
