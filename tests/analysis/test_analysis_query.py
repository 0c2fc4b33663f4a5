"""SQL over a run's tables: what it answers, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from trace_builder import TraceBuilder

from tracekit.analysis import query
from tracekit.errors import UsageError
from tracekit.model import TABLES, TRANSFERS, Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    builder = TraceBuilder()
    builder.range(0, 100, "read_csv")
    builder.range(10, 20, "/* not a comment")
    for number, stage in enumerate(("FP", "FP", "BP")):
        builder.op(f"k{number}", 10 * number, stage=stage, stage_source="nvtx")
    return builder.trace()


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT name FROM ops ORDER BY start", [("k0",), ("k1",), ("k2",)]),
        ("select stage, count(*) as n from ops group by stage order by n", [("BP", 1), ("FP", 2)]),
        ("WITH fp AS (SELECT * FROM ops WHERE stage = 'FP') SELECT COUNT(*) FROM fp", [(2,)]),
        ('  -- the longest\n /* of\n all */ SELECT MAX("end" - start) FROM ops', [(5,)]),
        ("(SELECT op FROM ops WHERE op = 1)", [(1,)]),
        (
            "SELECT op FROM ops WHERE op = 1 UNION SELECT range FROM ranges WHERE range = 1",
            [(1,)],
        ),
        (
            "SELECT o.op FROM ops o JOIN calls c USING (correlation) WHERE c.start > 5 ORDER BY 1",
            [(1,), (2,)],
        ),
        ("SELECT op FROM ops WHERE start > (SELECT AVG(start) FROM ops)", [(2,)]),
        ("SELECT range FROM ranges WHERE name = 'read_csv'", [(0,)]),
        ("SELECT range FROM ranges WHERE name = '/* not a comment'", [(1,)]),
        ("SELECT op FROM ops WHERE stage = 'no such'", []),
    ],
)
def test_answers(trace: Trace, sql: str, rows: list[tuple[object, ...]]) -> None:
    assert query(trace, sql).rows() == rows


def test_shows_the_tables(trace: Trace) -> None:
    assert query(trace, "SHOW TABLES").to_series().sort().to_list() == sorted(TABLES)


def test_explains_a_plan(trace: Trace) -> None:
    assert query(trace, "EXPLAIN SELECT op FROM ops").height >= 1


def test_the_run_is_as_it_was(trace: Trace) -> None:
    before = {name: trace.read(name) for name in trace.tables}
    query(trace, "SELECT * FROM ops")
    assert all(trace.read(name).equals(frame) for name, frame in before.items())


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "-- nothing",
        "DROP TABLE ops",
        "DELETE FROM ops",
        "TRUNCATE TABLE ops",
        "CREATE TABLE x AS SELECT * FROM ops",
        "INSERT INTO ops VALUES (1)",
        "UPDATE ops SET op = 1",
        "COPY ops TO 'x.csv'",
        "-- SELECT\nDROP TABLE ops",
        "/* SELECT */ DROP TABLE ops",
        "selected",
        "SELECT",
        "SELECT 1; DROP TABLE ops",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM ops",
        "SELECT * FROM kernels",
        "SELECT * INTO x FROM ops",
        "SELECT op + name FROM ops GROUP BY",
        "SELECT no_such_function(op) FROM ops",
        "SELECT CAST(name AS BIGINT) FROM ops",
        "SELECT (",
        "SELECT 'x",
        "WITH x AS (SELECT 1) DELETE FROM ops",
        "WITH x AS (DELETE FROM ops) SELECT 1",
        "\x00",
        "SELECT \x00",
    ],
)
def test_what_is_wrong_is_a_usage_error(trace: Trace, sql: str) -> None:
    with pytest.raises(UsageError) as caught:
        query(trace, sql)
    assert "\n\n" not in str(caught.value)
    assert "no " in str(caught.value) or "query" in str(caught.value)


@pytest.mark.parametrize("of", ["name", "stage"])
def test_a_pattern_for_categories_needs_a_cast(trace: Trace, of: str) -> None:
    """The hint listed the tables."""
    with pytest.raises(UsageError) as caught:
        query(trace, f"SELECT op FROM ops WHERE {of} LIKE '%g%'")
    assert "CAST(name AS VARCHAR) LIKE '%gemm%'" in str(caught.value.hint)
    query(trace, f"SELECT op FROM ops WHERE CAST({of} AS VARCHAR) LIKE '%g%'")


READERS = ("read_csv", "read_parquet", "read_ipc", "read_json", "read_ndjson", "scan_csv")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM {}('{}')",
        "SELECT * FROM {} ('{}')",
        "SELECT * FROM {}\n\t ('{}')",
        "SELECT * FROM {}\u00a0('{}')",
        "SELECT * FROM {}/**/('{}')",
        "SELECT * FROM {} /* a /* b */ c */ ('{}')",
        "SELECT * FROM {} -- comment\n('{}')",
        "SELECT * FROM \"{}\"('{}')",
        "SELECT * FROM `{}`('{}')",
        "SELECT * FROM '{}'('{}')",
        "SELECT * FROM \"{}\" /**/ ('{}')",
        "SELECT '/*', * FROM {}('{}') -- */",
        "SELECT '--', * FROM {}('{}')",
        "SELECT $$ -- $$, * FROM {}('{}')",
        "SELECT 1 /* ' */ FROM {}('{}') /* ' */",
        "SELECT * FROM ops WHERE op IN (SELECT a FROM {}('{}'))",
        "SELECT op FROM ops UNION ALL SELECT a FROM {}('{}')",
        "WITH x AS (SELECT * FROM {}('{}')) SELECT * FROM x",
        "SELECT * FROM ops CROSS JOIN {}('{}')",
        "SELECT * FROM ops, {}('{}')",
        "SELECT (SELECT MAX(a) FROM {}('{}')) FROM ops",
        "EXPLAIN SELECT * FROM {}('{}')",
        "(((SELECT * FROM {}('{}'))))",
        "FROM {}('{}')",
        "CREATE TABLE x AS SELECT * FROM {}('{}')",
    ],
)
def test_no_file_is_read(trace: Trace, tmp_path: Path, sql: str) -> None:
    # The same shape over one of the run's tables must not be what makes it fail.
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n", encoding="utf-8")
    for reader in READERS:
        for name in (reader, reader.upper(), reader.title()):
            with pytest.raises(UsageError):
                query(trace, sql.format(name, file))


def test_the_engines_functions_that_read_files_are_all_known(tmp_path: Path) -> None:
    """A function that opens files under a name of another kind must not slip in with an upgrade."""
    refused = "is not a supported table function"
    kinds = ("csv", "tsv", "parquet", "ipc", "arrow", "feather", "json", "ndjson", "avro", "delta",
             "iceberg", "excel", "database", "text", "blob", "file", "auto")  # fmt: skip
    names = [name for kind in kinds for name in (kind, f"{kind}_scan", f"load_{kind}")]
    with pl.SQLContext() as context:
        for name in [*names, "glob", "open", "file", "url", "http", "s3", "read", "scan", "load"]:
            with pytest.raises(pl.exceptions.SQLInterfaceError, match=refused):
                context.execute(f"SELECT * FROM {name}('{tmp_path}')").collect()


def test_a_file_is_no_table(trace: Trace, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n", encoding="utf-8")
    for quote in ("'", '"', "`"):
        with pytest.raises(UsageError):
            query(trace, f"SELECT * FROM {quote}{file}{quote}")


def test_frames_of_the_caller_are_no_tables(trace: Trace) -> None:
    mine = pl.DataFrame({"a": [1]})
    assert mine.height == 1
    with pytest.raises(UsageError, match="mine"):
        query(trace, "SELECT * FROM mine")


def test_derived_tables_are_made_when_they_are_named(trace: Trace) -> None:
    made = []

    def make() -> pl.DataFrame:
        made.append(1)
        return TRANSFERS.conform(pl.DataFrame({"report": [0], "process": [0], "start": [1],
            "end": [2], "method": ["p2p"], "evidence": ["measured"], "source": ["recorded"],
            "stage": ["WU"], "bytes": [7]}))  # fmt: skip

    derived = {"transfers": make}
    assert query(trace, "SELECT count(*) AS n FROM ops", derived).height == 1
    assert "transfers" in query(trace, "SHOW TABLES", derived).to_series()
    assert made == []
    assert query(trace, "SELECT sum(bytes) AS n FROM Transfers", derived).item() == 7
    assert made == [1]
