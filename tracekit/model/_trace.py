"""A run's tables as polars frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from tracekit.model._tables import TABLES


@dataclass(frozen=True)
class Trace:
    """The canonical tables of a run, with what was noticed while they were made.

    Parameters
    ----------
    tables
        Lazy frames by table name; every canonical table is there, if only without rows.
    warnings
        What a user should know about this run, one sentence each.
    """

    tables: Mapping[str, pl.LazyFrame]
    warnings: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, tables: Mapping[str, pl.DataFrame], warnings: tuple[str, ...] = ()) -> Trace:
        """Make a trace of eager frames; absent tables are empty, columns are conformed."""
        unknown = set(tables) - set(TABLES)
        if unknown:
            raise ValueError(f"no canonical table {', '.join(sorted(unknown))}")
        return cls(
            {
                name: table.conform(tables.get(name, table.empty())).lazy()
                for name, table in TABLES.items()
            },
            warnings,
        )

    @classmethod
    def scan(cls, folder: Path, warnings: tuple[str, ...] = ()) -> Trace:
        """Open the Parquet files that `write` made; nothing is read yet."""
        return cls(
            {name: pl.scan_parquet(folder / f"{name}.parquet", glob=False) for name in TABLES},
            warnings,
        )

    def write(self, folder: Path) -> None:
        """Write one Parquet file per table into `folder`, which exists."""
        for name, frame in self.tables.items():
            frame.sink_parquet(folder / f"{name}.parquet", compression="zstd", compression_level=1)

    def __getitem__(self, name: str) -> pl.LazyFrame:
        return self.tables[name]

    def read(self, name: str) -> pl.DataFrame:
        """Return a whole table as an eager frame."""
        return self.tables[name].collect()

    def with_tables(
        self, tables: Mapping[str, pl.DataFrame], warnings: tuple[str, ...] = ()
    ) -> Trace:
        """Return a trace in which `tables` take the place of those of the same name."""
        conformed = {name: TABLES[name].conform(frame).lazy() for name, frame in tables.items()}
        return replace(
            self,
            tables={**self.tables, **conformed},
            # An analysis that is done again warns again of the same things.
            warnings=tuple(dict.fromkeys(self.warnings + warnings)),
        )
