"""The store: a catalogue of runs and one folder of Parquet per run.

A store is a folder::

    store.json          the store's id
    catalogue.sqlite    the catalogue, unless TRACEKIT_CATALOG puts it elsewhere
    runs/<folder>/      the columns of one run, named by one row of the catalogue
    staging/<folder>/   columns that an ingest is writing
    staging/*.lock      held by the ingest whose folder, in staging/ or runs/, has that name

A run exists from the moment its row is committed, and its columns are complete on disk before that.
What no row names and no living ingest holds is left over, and the next ingest removes it.
"""

from tracekit.store._digest import file_digest
from tracekit.store._record import RunRecord, SummaryValue
from tracekit.store._store import Store

__all__ = ["RunRecord", "Store", "SummaryValue", "file_digest"]
