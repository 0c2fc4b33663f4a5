"""The layers of a network by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""What modules around others call the one inside."""
_CONTAINERS = frozenset({"ModuleList", "ModuleDict"})
"""Modules that are never called: they are no level of their own."""


class Layers:
    """Names of the layers of networks, down to some depth, found once for each network.

    Parameters
    ----------
    depth
        How far down: 1 for the network's own children, 2 for theirs too; 0 for no layers.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._known: WeakKeyDictionary[Any, Mapping[int, str]] = WeakKeyDictionary()

    def of(self, network: Any) -> Mapping[int, str]:
        """Return the names of the ranges of a network's layers, by the identity of the module."""
        if self._depth == 0:
            return {}
        known = self._known.get(network)
        if known is None:
            found = _layers(network, "", 0, self._depth)
            known = self._known[network] = {
                id(layer): f"layer {name} ({type(layer).__name__})" for name, layer in found
            }
        return known


def _layers(module: Any, prefix: str, level: int, depth: int) -> Iterator[tuple[str, Any]]:
    """Give the layers below a module with their names, in which wrappers do not appear."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if name in _WRAPPERS:
            yield from _layers(child, prefix, level, depth)
        elif type(child).__name__ in _CONTAINERS:
            yield from _layers(child, path, level, depth)
        else:
            yield path, child
            if level + 1 < depth:
                yield from _layers(child, path, level + 1, depth)
