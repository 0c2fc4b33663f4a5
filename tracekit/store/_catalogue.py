"""The catalogue of runs, in SQLite or PostgreSQL.

One catalogue may serve several stores; each row has the id of its store. Only one write transaction
runs at a time, so rows that a writer has read stay valid until it commits. Constraints of the
database ensure unique ids, names and digests in addition.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tracekit.errors import StoreError
from tracekit.store._access import check_database, make_database
from tracekit.store._rows import (
    META,
    READING,
    REBUILT,
    RUNS,
    SCHEMA,
    WAIT_SECONDS,
    WRITING,
    UnreadableRowError,
    begin,
    check_tables,
    damaged,
    entry_of,
    identity_of,
    unusable,
    values_of,
)
from tracekit.store._run_record import Entry, RunRecord
from tracekit.store._staging import DATABASE

_CONNECT_SECONDS = 10
_POSTGRES_LOCK = 0x7472_6163_656B_6974  # any number that no other program is likely to take

_TABLES = sa.MetaData()

_META = sa.Table(
    META,
    _TABLES,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

_RUNS = sa.Table(
    RUNS,
    _TABLES,
    sa.Column("number", sa.Integer, primary_key=True),  # grows, whatever the clock does
    sa.Column("store", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created", sa.Text, nullable=False),  # ISO 8601, UTC
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("labels", sa.Text, nullable=False),  # JSON, as are the three that follow
    sa.Column("files", sa.Text, nullable=False),
    sa.Column("warnings", sa.Text, nullable=False),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False, unique=True),
    sa.UniqueConstraint("store", "id"),
    sa.UniqueConstraint("store", "name"),
    sa.UniqueConstraint("store", "digest"),
)


class Rows:
    """Access to the runs of one store within a database transaction."""

    def __init__(self, connection: sa.Connection, store: str, catalogue_id: str) -> None:
        self._connection = connection
        self._store = store
        self.catalogue_id = catalogue_id

    def entries(self) -> list[Entry]:
        """Return the runs, oldest first."""
        query = sa.select(_RUNS).where(_RUNS.c.store == self._store).order_by(_RUNS.c.number)
        return [entry_of(row) for row in self._connection.execute(query).mappings()]

    def insert(self, entry: Entry) -> None:
        """Add a run's row."""
        self._connection.execute(sa.insert(_RUNS).values(store=self._store, **values_of(entry)))

    def update(self, entry: Entry) -> None:
        """Replace the row of the run with the id of `entry`; the order of runs does not change."""
        self._connection.execute(
            sa.update(_RUNS).where(self._is(entry.record)).values(**values_of(entry))
        )

    def delete(self, record: RunRecord) -> None:
        """Delete a run's row."""
        self._connection.execute(sa.delete(_RUNS).where(self._is(record)))

    def _is(self, record: RunRecord) -> sa.ColumnElement[bool]:
        return sa.and_(_RUNS.c.store == self._store, _RUNS.c.id == record.id)


class Catalogue:
    """Database of the catalogue; each connection lasts for one transaction."""

    def __init__(self, url: sa.URL, file: Path | None = None) -> None:
        self._url = url
        self._file = file
        """Path of the SQLite file, if the catalogue is in the store's folder; else None."""
        self.where = _shown(url)

    @classmethod
    def of(cls, root: Path, catalog: str | None) -> Catalogue:
        """Return the catalogue at the URL `catalog`; if that is None, the store's own in `root`."""
        if catalog is None:
            file = root / DATABASE
            return cls(sa.URL.create("sqlite", database=str(file)), file)
        return cls(_parsed(catalog))

    def identity(self) -> str | None:
        """Return the catalogue's own id; None if no catalogue was written yet."""
        with self._connected() as connection:
            return self._identity(connection) if connection else None

    def folders(self, identity: str) -> set[str]:
        """Return the folders of the runs of all stores.

        Raises `StoreError` if the catalogue has another id than `identity`.
        """
        with self._connected() as connection:
            if connection is None or self._identity(connection) != identity:
                raise StoreError(f"the catalogue {self.where} was replaced", "try again")
            return set(connection.execute(sa.select(_RUNS.c.folder)).scalars())

    @contextmanager
    def reading(self, store: str) -> Iterator[Rows | None]:
        """Yield read access to a store's runs; None if no catalogue was written yet."""
        with self._connected() as connection:
            identity = self._identity(connection) if connection else None
            yield Rows(connection, store, identity) if connection and identity else None

    @contextmanager
    def writing(self, store: str) -> Iterator[Rows]:
        """Yield access to a store's runs in a transaction that excludes other writers.

        The transaction is committed at the end, and rolled back on an exception.
        """
        if self._file:
            check_database(self._file, REBUILT)
            with self._errors():
                make_database(self._file)
        with self._errors(), self._engine.connect() as connection:
            writer = connection.execution_options(tracekit_writes=True)
            with writer.begin():
                yield Rows(writer, store, self._identity(writer) or self._create(writer))

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection | None]:
        if self._file:
            check_database(self._file, REBUILT)
        with self._errors():
            if self._is_sqlite and not Path(self._url.database or "").exists():
                yield None  # where connecting would create the file
                return
            with self._engine.connect() as connection:
                yield connection

    def _identity(self, connection: sa.Connection) -> str | None:
        if self._is_sqlite:  # of which SQLAlchemy would ask in many steps
            listed = connection.exec_driver_sql("SELECT name, type FROM sqlite_master")
            kinds = dict(map(tuple, listed))
        else:
            inspected = sa.inspect(connection)
            kinds = {
                **dict.fromkeys(inspected.get_view_names(), "view"),
                **dict.fromkeys(inspected.get_table_names(), "table"),
            }
        if not check_tables(kinds, self.where):
            return None
        meta: dict[str, str] = {row.key: row.value for row in connection.execute(sa.select(_META))}
        return identity_of(meta, self.where)

    @staticmethod
    def _create(connection: sa.Connection) -> str:
        _TABLES.create_all(connection)
        identity = secrets.token_hex(4)
        meta = {"schema": str(SCHEMA), "id": identity}
        connection.execute(
            sa.insert(_META), [{"key": key, "value": value} for key, value in meta.items()]
        )
        return identity

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @cached_property
    def _engine(self) -> sa.Engine:
        try:
            return _sqlite_engine(self._url) if self._is_sqlite else _postgres_engine(self._url)
        except ImportError as error:
            raise StoreError(
                f"the catalogue {self.where} needs the PostgreSQL driver psycopg",
                "install it with `pip install 'tracekit[postgres]'`",
            ) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert failures of the database, and errors about invalid rows, to `StoreError`."""
        try:
            yield
        except (sa.exc.SQLAlchemyError, sqlite3.Error, OSError) as error:
            hint = None if self._is_sqlite else _SERVER
            raise unusable(self.where, getattr(error, "orig", None) or error, hint) from error
        except UnreadableRowError as error:
            raise damaged(self.where) from error


_SERVER = "check TRACEKIT_CATALOG, and that its server runs and knows the user"


def _shown(url: sa.URL) -> str:
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    # The query may hold a password too.
    return url.set(query={}).render_as_string(hide_password=True)


def _parsed(catalog: str) -> sa.URL:
    hint = "write it as postgresql://user@host/database"
    try:
        url = sa.make_url(catalog)
    except (sa.exc.ArgumentError, ValueError):
        # Their texts, and the chain of causes, may repeat a password.
        raise StoreError("TRACEKIT_CATALOG is not a database URL", hint) from None
    if url.drivername in {"postgres", "postgresql", "postgresql+psycopg"}:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database not in {None, "", ":memory:"}:
        return url.set(database=str(Path(url.database or "").absolute()), query={})
    raise StoreError("TRACEKIT_CATALOG names neither a PostgreSQL database nor a file", hint)


@lru_cache(8)
def _sqlite_engine(url: sa.URL) -> sa.Engine:
    # Without the driver's own transactions: a writer has to say BEGIN IMMEDIATE.
    arguments = {"timeout": WAIT_SECONDS, "isolation_level": None}
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args=arguments)

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("tracekit_writes", False)
        driver: Any = connection.connection.dbapi_connection
        begin(driver, WRITING if writes else READING, url.database or "", WAIT_SECONDS)

    return engine


def _postgres_engine(url: sa.URL) -> sa.Engine:
    arguments = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_SECONDS}
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, connect_args=arguments, isolation_level="READ COMMITTED"
    )

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if connection.get_execution_options().get("tracekit_writes", False):
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK})")

    return engine
