"""Put slices that overlap without nesting on lanes beside each other."""

from __future__ import annotations


class Lanes:
    """Lanes of the slices of one track, given by start, outer ones first."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []

    def place(self, start: int, end: int) -> int:
        """Return the first lane on which a slice follows all others or lies inside of them."""
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        self._open.append([end])
        return len(self._open) - 1
