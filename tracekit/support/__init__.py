"""Helpers for all packages: files, spools, compiled loops. They know nothing of traces."""

__all__: list[str] = []
