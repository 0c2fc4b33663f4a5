"""`tracekit runs`: the runs in the store."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit import model, present
from tracekit import store as stores
from tracekit.cli._command import Judged, action, app, command, examples
from tracekit.cli._guard import ForgivingGroup
from tracekit.cli._options import (
    Label,
    RunArgument,
    complete_run,
    rows_frame,
)
from tracekit.errors import UsageError
from tracekit.support.columns import columns, keys
from tracekit.support.questions import Folder, Option
from tracekit.support.schemas import NO_RUN, Json
from tracekit.support.wording import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from tracekit.model import Answer
    from tracekit.store import RunRecord

_HELP = ("-h", "--help")


class _ListByDefault(ForgivingGroup):
    """A group that runs its command `list` if no command is named."""

    meant: Mapping[str, str] = {"ls": "list", "rm": "remove", "delete": "remove", "mv": "rename"}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in _HELP):
            args = ["list", *args]
        return super().parse_args(ctx, args)


runs = typer.Typer(
    cls=_ListByDefault,
    help="List, show, rename, remove and check the runs in the store; alone, list them.",
    epilog=examples("tracekit runs", "tracekit runs show @latest"),
)
app.add_typer(runs, name="runs")


_RUNS = Json(
    "runs",
    run=NO_RUN,
    meta={
        **keys("store", "warnings?"),
    },
    rows={
        **columns("name", "id", "created", "devices", "iterations", "ops", "labels", "files"),
    },
)


@command(
    "tracekit runs list --label model=unet",
    name="list",
    group=runs,
    writes=[_RUNS],
)
def list_runs(label: Label = None, store: Folder = None) -> "Answer":
    """List the runs in the store, oldest first: all, or the runs with these labels."""
    found = stores.Store.discover(store)
    listed = model.Answer(
        rows=_overview(found.runs(label or {})),
        meta={"store": str(found.root)},
        empty="no runs; `tracekit ingest FILE` makes one",
        command="runs",
        headline=lambda rows, _: (
            f"{present.count(rows.height, 'run')}, the latest {rows['name'][-1]}"
        ),
    )
    strays = found.strays()
    lost = (
        f"{count(strays, 'run')} of this store not in its catalogue: `tracekit runs check` explains"
    )
    return listed.warning([lost] if strays else [])


_RUNS_SHOW = Json(
    "runs show",
    rows={
        **columns("name", "id", "created", "files", "labels"),
        "digest": "text: Digest of the content of its files.",
        "options": "text: Attribution options that it was ingested with, as JSON.",
        "devices": "count: Number of devices that ran an op.",
        "gpus": "text or null: Product names of the devices.",
        "processes": "count: Number of processes.",
        "ops": "count: Number of ops.",
        "kernels": "count: Number of ops that are kernels.",
        "ranges": "count: Number of NVTX ranges.",
        "iterations": "count: Number of iterations.",
        **columns("verdict", "launched", "coverage", "warnings"),
    },
)


@command(
    "tracekit runs show @latest",
    name="show",
    group=runs,
    rows=False,
    writes=[_RUNS_SHOW],
)
def show_run(run: RunArgument = "@latest", store: Folder = None) -> "Answer":
    """Show a run's files, labels, settings of ingest, and counts of its contents."""
    record = stores.Store.discover(store).find(run)
    rows = rows_frame([_details(record)])
    return model.Answer(
        rows=rows, run=record.name, as_records=True, command="runs show", headline=_size
    )


def _size(rows: "pl.DataFrame", _: Mapping[str, Any]) -> str | None:
    """Return a sentence: the amount of GPU work in a run."""
    numbers = {"op": "ops", "device": "devices", "iteration": "iterations"}
    sums = rows.row(0, named=True)
    if any(sums.get(key) is None for key in numbers.values()):
        return None
    ops, devices, steps = (present.count(sums[key], noun) for noun, key in numbers.items())
    return f"{steps}, {ops} on {devices}"


@action("tracekit runs rename @latest unet-fp16", name="rename", group=runs)
def rename_run(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.")],
    store: Folder = None,
) -> None:
    """Give a run another name."""
    found = stores.Store.discover(store)
    before = found.find(run)
    _say(f"renamed {before.name} to {found.rename(before.id, name).name}")


@action("tracekit runs remove unet-fp16", name="remove", group=runs)
def remove_runs(
    references: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Names of runs, starts of their ids, or @latest.",
            autocompletion=complete_run,
        ),
    ],
    store: Folder = None,
) -> None:
    """Remove runs from the store; the trace files that they were made of stay."""
    found = stores.Store.discover(store)
    # All are looked up before the first goes, so that a wrong name removes nothing.
    records = {record.id: record for record in map(found.find, references)}
    for record in records.values():
        folder = found.folder(record)
        found.remove(record.id)
        _say(f"removed {record.name} ({record.id}): {folder}")


_RUNS_CHECK = Json(
    "runs check",
    run=NO_RUN,
    meta={
        **keys("store"),
    },
    rows={
        "what": "one of store, catalogue, run, folder: What is wrong: the store, its catalogue, a "
        "run, or a folder of none.",
        "name": "text: Its file, name or folder.",
        "fault": "text: What is wrong with it.",
        "todo": "text or null: What is left to do; null where it is mended.",
        "mended": "flag: Whether it is right by now.",
    },
)


@command(
    "tracekit runs check",
    "tracekit runs check --repair",
    name="check",
    group=runs,
    writes=[_RUNS_CHECK],
)
def check_runs(
    *,
    repair: Annotated[
        bool,
        Option("Repair what can be repaired without the original traces."),
    ] = False,
    store: Folder = None,
) -> Judged:
    """Read every file of the store, and list damage; exits with 1 if there is any.

    To repair damaged or missing data of a run, ingest its trace files again. --repair rebuilds the
    catalogue and the store's id from the runs' folders.
    """
    import polars as pl

    found = stores.Store.discover(store)
    texts = ("what", "name", "fault", "todo")
    types = {**dict.fromkeys(texts, pl.String()), "mended": pl.Boolean()}
    findings = found.check(repair=repair)
    answer = model.Answer(
        rows=pl.DataFrame([vars(each) for each in findings], schema=types),
        meta={"store": str(found.root)},
        title="what is wrong in the store",
        empty="nothing is wrong",
        command="runs check",
    )
    return Judged(answer, int(any(not each.mended for each in findings)))


@action("tracekit runs gc --dry-run", "tracekit runs gc", name="gc", group=runs)
def collect_runs(
    *,
    dry_run: Annotated[bool, Option("Only list the folders that would be removed.")] = False,
    store: Folder = None,
) -> None:
    """Remove what interrupted ingests have left, and cached files that no view reads any more."""
    gone = stores.Store.discover(store).collect(dry_run=dry_run)
    for folder in gone:
        _say(f"{'would remove' if dry_run else 'removed'} {folder}")
    if not gone:
        _say("nothing was left over")


@action("tracekit runs share --group trainers", name="share", group=runs)
def share_store(
    *,
    group: Annotated[
        str | None,
        Option("Whose members may read and change it.", "GROUP"),
    ] = None,
    private: Annotated[bool, Option("Make the store private again, as a new one is.")] = False,
    store: Folder = None,
) -> None:
    """Share the store with a group of users, or make it your own again.

    Members of the group can read and write its files, also those that later ingests add. They name
    the store with --store or TRACEKIT_STORE.
    """
    if (group is None) != private:
        raise UsageError(
            "the group to share with is missing", "give either --group GROUP or --private"
        )
    found = stores.Store.discover(store)
    found.share(group)
    _say(f"{found.root} is {'shared with ' + repr(group) if group else 'not shared any more'}")


def _overview(records: "Sequence[RunRecord]") -> "pl.DataFrame":
    import polars as pl

    counts, texts = ("devices", "iterations", "ops"), pl.List(pl.String())
    schema = {
        "name": pl.String(), "id": pl.String(), "created": pl.Datetime("us", "UTC"),
        **dict.fromkeys(counts, pl.Int64()), "labels": texts, "files": texts,
    }  # fmt: skip
    rows = [
        (each.name, each.id, each.created, *(_count(each, key) for key in counts),
         _labels(each), list(each.files))
        for each in records
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def _count(record: "RunRecord", key: str) -> int | None:
    value = record.summary.get(key)
    return value if isinstance(value, int) else None


def _details(record: "RunRecord") -> dict[str, Any]:
    return {
        "name": record.name,
        "id": record.id,
        "created": record.created,
        "files": list(record.files),
        "labels": _labels(record),
        "digest": record.digest,
        "options": record.options,
        **record.summary,
        "warnings": list(record.warnings),
    }


def _labels(record: "RunRecord") -> list[str]:
    return [f"{key}={value}" for key, value in record.labels.items()]


def _say(message: str) -> None:
    typer.echo(present.printable(message))
