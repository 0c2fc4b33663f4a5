"""Helpers for all packages, independent of traces: files, out-of-core tables, compiled loops."""

__all__: list[str] = []
