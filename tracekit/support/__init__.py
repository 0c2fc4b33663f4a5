"""Helpers for every room: files, spools, compiled loops, locations. They know no traces."""

__all__: list[str] = []
