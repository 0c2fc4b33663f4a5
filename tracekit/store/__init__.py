"""The store: a catalogue of runs and one folder of Parquet per run.

A store is a folder::

    store.json          the store's id
    catalogue.sqlite    the catalogue, unless TRACEKIT_CATALOG puts it elsewhere
    runs/<folder>/      the columns of one run, named by one row of the catalogue: folders 0, 1, ...
                        of its reports, in each a folder of parts per table, parts.json with their
                        rows, times.json with the first and last time in each part of long tables,
                        and checks.json with their checksums; run.json is a copy of its row;
                        kept/ caches sums and tiles that are computed from the tables
    staging/<folder>/   columns that an ingest is writing
    staging/*.lock      held by the ingest whose folder, in staging/ or runs/, has that name

A run exists from the moment its row in the catalogue is committed; its columns are complete on disk
before that. A folder is a leftover if no row refers to it, no running ingest has locked it and it
has no copy of a row; the next ingest removes it.
"""

from typing import TYPE_CHECKING

from tracekit.support.lazily import lazily

if TYPE_CHECKING:
    from tracekit.store._cache import Kept
    from tracekit.store._executors import Workers, open_executor
    from tracekit.store._jobs import (
        NOT_YET,
        Executor,
        file_digest,
        file_size,
        file_state,
        run_digest,
    )
    from tracekit.store._report import ReportOptions
    from tracekit.store._reports import Made, make_reports
    from tracekit.store._run_record import (
        RunRecord,
        SummaryValue,
        check_labels,
        check_name,
        is_named_as_file,
    )
    from tracekit.store._store import OnMissing, Store
    from tracekit.support.spool import DEFAULT_MEMORY

__getattr__, __dir__ = lazily(__name__)
