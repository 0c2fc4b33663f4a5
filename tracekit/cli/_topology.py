"""`tracekit topology`: the machine, its links and routes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tracekit import machine as machines
from tracekit import model, present
from tracekit.cli._command import Judged, action, app, command, examples
from tracekit.cli._guard import Group
from tracekit.cli._options import (
    LATEST,
    complete_run,
    open_run,
    write_text,
)
from tracekit.errors import UsageError
from tracekit.support.columns import keys
from tracekit.support.files import StrPath
from tracekit.support.questions import Folder, Option, Topology
from tracekit.support.schemas import NO_RUN, Json, one

if TYPE_CHECKING:
    import polars as pl

    from tracekit.machine import Machine
    from tracekit.model import Answer

What = Literal["matrix", "links", "routes", "relays"]
"""Part of a machine to list."""


topology = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="Show the machine that a run used, a preset or a topology file; check and convert files.",
    epilog=examples("tracekit topology show dgx1v --what relays", "tracekit topology list"),
)
app.add_typer(topology, name="topology")


def complete_machine(incomplete: str) -> list[str]:
    """Propose presets, runs and files that begin with `incomplete`."""
    from tracekit.machine import preset_names

    presets = [name for name in preset_names() if name.startswith(incomplete)]
    return [*presets, *complete_run(incomplete)]


_TOPOLOGY_SHOW = Json(
    "topology show",
    run=NO_RUN,
    meta={
        "machine": "text: Preset or file.",
        "origin": "text: How the machine is known.",
        **keys("gpus", "warnings?"),
    },
    rows={
        "gpu?": "text: GPU (matrix).",
        "nvlinks?": "integer or null: NVLinks of the GPU (matrix), or bonded into the link "
        "(links); null where unknown.",
        "cpu?": "text or null: Nearest CPU (matrix).",
        "link?": "text: Link (links).",
        "type?": "text or null: Type of link (links), or the slowest on the route (routes).",
        "known?": "one of stated, recognised, assumed: How the link is known (links): stated in "
        "a file or the trace, recognised from the product and a preset, or assumed.",
        "bandwidth_gb_s?": "number or null: Peak per direction (links), GB/s; GB is 10^9 bytes. "
        "Null where unknown.",
        "src?": "text: One GPU (routes, relays).",
        "dst?": "text: The other (routes, relays).",
        "route?": "text or null: Nodes that are crossed (routes).",
        "bottleneck_gb_s?": "number or null: Peak of the narrowest link (routes, relays), GB/s; "
        "GB is 10^9 bytes. Null where unknown.",
        "relay?": "text: GPU between them (relays).",
        "nvlinks_in?": "integer: NVLinks of the first hop (relays).",
        "nvlinks_out?": "integer: NVLinks of the second hop (relays).",
        "best?": "flag: Whether no relay is wider (relays).",
    },
    row_rules={
        "patternProperties": {
            "^GPU[0-9]+$": one(
                "text or null: How the two GPUs are joined (matrix); null where there is no way."
            )
        }
    },
)


@command(
    "tracekit topology show",
    "tracekit topology show topo.txt --what routes",
    "tracekit topology show dgx-h100 --drawing machine.html",
    group=topology,
    figures={"drawing": "Draw the machine"},
    writes=[_TOPOLOGY_SHOW],
)
def show(
    machine: Annotated[
        str,
        typer.Argument(
            metavar="MACHINE",
            help="A preset, a topology file, or a run (its name, start of its id, or @latest).",
            autocompletion=complete_machine,
        ),
    ] = LATEST,
    *,
    what: Annotated[What, Option("What to list.")] = "matrix",
    store: Folder = None,
) -> "Answer":
    """List how GPUs are joined (matrix), the links, the routes of copies, or two-hop relays."""
    found = _machine(machine, store)
    meta = {"machine": found.name, "origin": found.origin, "gpus": len(found.gpus)}
    if found.warnings:
        meta["warnings"] = list(found.warnings)
    return model.Answer(
        rows=_table(found, what),
        meta=meta,
        title=f"{found.name} · {what}",
        empty=f"no {what}",
        command="topology show",
        figures={"drawing": "plain machine"},
        source=found,
        headline=_HEADLINES[what],
        renderer=present.RENDERER,
    )


_TOPOLOGY_LIST = Json(
    "topology list",
    run=NO_RUN,
    rows={
        "preset": "text: Name.",
        "gpus": "integer: Number of GPUs.",
        "nvlinks": "integer: NVLinks of each GPU.",
        "switched": "flag: Whether these lead to NVSwitches.",
        "nics": "integer: NICs.",
    },
)


@command(
    "tracekit topology list",
    name="list",
    group=topology,
    writes=[_TOPOLOGY_LIST],
)
def list_presets() -> "Answer":
    """List the machines that are known by name."""
    import polars as pl

    from tracekit.machine import load_preset, preset_names

    machines = [load_preset(name) for name in preset_names()]
    rows = {
        "preset": [machine.name for machine in machines],
        "gpus": [len(machine.gpus) for machine in machines],
        "nvlinks": [
            max((sum(row) for row in machine.nvlink_matrix()), default=0)
            or max(map(machine.switch_bricks, machine.gpus), default=0)
            for machine in machines
        ],
        "switched": [bool(machine.nodes("nvswitch")) for machine in machines],
        "nics": [len(machine.nodes("nic")) for machine in machines],
    }
    return model.Answer(
        rows=pl.DataFrame(rows), title="presets", command="topology list", headline=_largest_preset
    )


_TOPOLOGY_CHECK = Json(
    "topology check",
    run="text or null: Name of the run; null for a topology file.",
    meta={
        "machine": "text: File.",
        **keys("gpus"),
        "links": "integer: Links.",
        "warnings": "texts: What is not known, one sentence each.",
    },
    rows={"problem": "text: What is odd."},
)


@command(
    "tracekit topology check topo.txt",
    "tracekit topology check RUN --topology topo.txt",
    group=topology,
    writes=[_TOPOLOGY_CHECK],
)
def check(
    machine: Annotated[
        str,
        typer.Argument(
            metavar="FILE|RUN", help="A topology file, or a run.", autocompletion=complete_machine
        ),
    ],
    *,
    topology: Topology = None,
    store: Folder = None,
) -> Judged:
    """List what is implausible in a topology file or a run's machine; exit with 1 if anything is.

    For a run, that includes copies that this machine cannot have made: copies faster than their
    links, and copies between devices without a route.
    """
    import polars as pl

    from tracekit.machine import find_machine, is_topology, problems, unknown_bandwidths

    run = None
    if not is_topology(machine):
        opened = open_run(machine, store)
        traffic = opened.traffic(topology=topology)
        run, found = opened.name, traffic.placed.machine
        odd = (*problems(found), *traffic.contradictions())
    elif topology is not None:
        raise UsageError("--topology is for a run", "give the file alone, or a run")
    else:
        found = find_machine(machine)
        odd = problems(found)
    rows = pl.DataFrame({"problem": pl.Series(odd, dtype=pl.String)})
    meta = {
        "machine": found.name,
        "gpus": len(found.gpus),
        "links": len(found.links),
        "warnings": [*found.warnings, *unknown_bandwidths(found)],
    }
    answer = model.Answer(
        rows=rows,
        meta=meta,
        title=f"{run or Path(machine).name} · problems",
        empty="nothing is odd",
        command="topology check",
        run=run,
        headline=lambda rows, _: present.count(rows.height, "problem"),
    )
    return Judged(answer, 1 if odd else 0)


@action("tracekit topology import topo.txt --output machine.toml", name="import", group=topology)
def import_topology(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A topology file, or a preset.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here, not to standard output."),
    ] = None,
) -> None:
    """Convert a topology file to TOML, to be read, completed by hand, and used as --topology."""
    from tracekit.machine import find_machine, machine_toml

    write_text(machine_toml(find_machine(str(file))), output)


def _machine(reference: str, store: StrPath | None) -> "Machine":
    """Return the machine for a reference: a preset, a file, or a run."""
    from tracekit.machine import find_machine, is_topology

    if is_topology(reference):
        return find_machine(reference)
    return open_run(reference, store).machine()


def _table(machine: "Machine", table: What) -> "pl.DataFrame":
    tables = {
        "matrix": machines.adjacency,
        "links": machines.link_table,
        "routes": machines.route_table,
        "relays": machines.relay_table,
    }
    return tables[table](machine)


def _largest_preset(rows: "pl.DataFrame", _: Mapping[str, Any]) -> str:
    most = max(rows["gpus"].to_list())
    return f"{present.count(rows.height, 'machine')} known by name, of up to {most} GPUs"


def _joined(rows: "pl.DataFrame", _: Mapping[str, Any]) -> str:
    """Return a sentence: how many pairs of GPUs have an NVLink between them."""
    ways = [
        rows[gpu][place] for place, gpu in enumerate(rows["gpu"]) for gpu in rows["gpu"][:place]
    ]
    joined = sum(str(way).startswith("NV") for way in ways)
    return f"NVLink joins {_of_pairs(joined, len(ways))}"


def _widest_link(rows: "pl.DataFrame", _: Mapping[str, Any]) -> str:
    links = present.count(rows.height, "link")
    return f"{links}; {_ends(rows['bandwidth_gb_s'])} per direction"


def _routes(rows: "pl.DataFrame", _: Mapping[str, Any]) -> str:
    joined = rows.filter(type="nvlink").height
    return (
        f"{_of_pairs(joined, rows.height)} copy over NVLink alone; {_ends(rows['bottleneck_gb_s'])}"
    )


def _relays(rows: "pl.DataFrame", _: Mapping[str, Any]) -> str:
    pairs = present.count(rows.select("src", "dst").unique().height, "pair")
    return f"{pairs} of GPUs without an NVLink reach each other by a relay"


def _of_pairs(number: int, of: int) -> str:
    return f"{number:,} of {present.count(of, 'pair')} of GPUs"


def _ends(bandwidths: "pl.Series") -> str:
    known = bandwidths.drop_nulls().to_list()
    if not known:
        return "their peaks are unknown"
    ends = dict.fromkeys(f"{each:.4g}" for each in (min(known), max(known)))
    which = "known peaks" if len(known) < bandwidths.len() else "peaks"
    return f"{which} are {' to '.join(ends)} GB/s"


_HEADLINES = {
    "matrix": _joined, "links": _widest_link, "routes": _routes, "relays": _relays,
}  # fmt: skip
