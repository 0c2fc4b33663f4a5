"""Helpers for all packages, independent of traces: files, spools, compiled loops."""

__all__: list[str] = []
