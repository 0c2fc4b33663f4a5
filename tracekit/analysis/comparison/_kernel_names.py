"""Kernels of two runs under names that match."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.model import KERNEL_KINDS, Trace, normalised_name

_BLANKS = re.compile(r"\s*([*&<>,()\[\]:])\s*")


def with_names_alike(runs: Sequence[Trace]) -> list[Trace]:
    """Return runs in which kernels are spelled alike that differ in nothing but blanks.

    One compiler writes ``double *``, another one ``double*``; the first spelling stands.
    """
    known = sorted({name for run in runs for name in _kernels(run)})
    spelled: dict[str, str] = {}
    alike = {name: spelled.setdefault(_BLANKS.sub(r"\1", name), name) for name in known}
    changed = {name: first for name, first in alike.items() if name != first}
    return [_renamed(run, changed) for run in runs] if changed else list(runs)


def _kernels(trace: Trace) -> list[str]:
    is_kernel = pl.col("kind").is_in(list(KERNEL_KINDS))
    names = trace["ops"].filter(is_kernel).select(pl.col("name").unique()).collect()["name"]
    return names.cast(pl.String).drop_nulls().to_list()


def _renamed(trace: Trace, names: Mapping[str, str]) -> Trace:
    is_kernel = pl.col("kind").is_in(list(KERNEL_KINDS))
    new = pl.col("name").cast(pl.String).replace(names).cast(pl.Categorical())
    ops = trace["ops"].with_columns(pl.when(is_kernel).then(new).otherwise("name").alias("name"))
    return trace.with_lazy({"ops": ops})


def with_normalised_names(trace: Trace) -> Trace:
    """Return a run in which kernels have their normalised names."""
    return _renamed(trace, {name: normalised_name(name) for name in _kernels(trace)})
