"""Bytes, bandwidth and utilisation of each link."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from tracekit.analysis.calls import excerpt
from tracekit.analysis.facts import OF_PROCESSES, chosen_keys
from tracekit.analysis.traffic._link_time import EVER, Computing, Covered, exposed_parts
from tracekit.analysis.traffic._routes import Routes
from tracekit.engine import chosen_windows
from tracekit.errors import UsageError
from tracekit.machine import PREFIXES, Machine
from tracekit.model import REPORTS, Stretch, Trace, with_clocks

_COLUMNS = {
    "link": ("link", "src", "dst", "type", "nvlinks"),
    "pair": ("src_device", "dst_device", "route"),
    "nic": ("host", "nic", "direction", "nic_by", "memory"),
    "hosts": ("src_host", "dst_host"),
    "route": ("route", "route_type"),
    "method": ("method",),
    "group": ("group",),
    "parallelism": ("parallelism",),
    "stage": ("stage",),
    "rank": ("rank",),
    "node": ("node",),
    "iteration": ("iteration",),
    "phase": ("phase",),
}
LINK_KEYS = tuple(_COLUMNS)
"""Keys to group traffic by."""

_WITH_PEAK = {
    "link": "bandwidth",
    "nic": "bandwidth",
    "pair": "route_bandwidth",
    "route": "route_bandwidth",
}
_GB_S = 1e9
_OF_GROUPS = ("group", "parallelism")
_FABRIC = PREFIXES["fabric"]


_TOTALS = {
    "sums": (
        pl.col("transfers", "unsized").sum(),
        pl.when(pl.col("bytes").count() > 0).then(pl.col("bytes").sum()),
        pl.col("peak").first(),
    ),
    "unknown": (pl.col("is_unknown").any(),),
    "choices": (
        pl.col("collectives").sum(),
        pl.col("is_sure").all(),
        pl.col("least_bytes", "most_bytes").sum(),
    ),
}
"""How rows add up to sums, and these to sums of more: both have the same columns in one order."""


def parse_link_keys(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the keys in a text such as ``"link,stage"``, or in a sequence of keys, as a tuple.

    Raises
    ------
    UsageError
        If a key is unknown, is given twice, or none is given.
    """
    return chosen_keys(by, LINK_KEYS, "links")


def links(
    transfers: pl.DataFrame | Iterable[tuple[pl.DataFrame, int]],
    machine: Machine,
    place: Mapping[int, int],
    *,
    by: str | Sequence[str] = "link",
    window_ns: int | None = None,
    reports: pl.DataFrame | None = None,
    processes: pl.DataFrame | None = None,
    between: tuple[int, int] | None = None,
    hosts: Mapping[int, str | None] | None = None,
    phases: pl.DataFrame | None = None,
    computing: Computing | None = None,
    groups: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return traffic by link, pair of GPUs, route, method, stage, rank, node, iteration or phase.

    ``docs/links.md`` defines the columns (those of the command ``tracekit links``).

    Parameters
    ----------
    transfers
        As in the table `TRANSFERS`; or batches of its rows, each with a time before which no
        transfer of a later batch starts.
    machine
        The machine that the transfers cross.
    place
        Device of the run -> GPU of the machine.
    by
        Keys from `LINK_KEYS`, as a sequence or separated by commas. With ``link``, a transfer
        counts on every link that it crosses; with ``pair`` only transfers between two GPUs count.
    window_ns
        Time over which ``share`` is computed (its divisor), ns; None: ``share`` is null.
    reports
        Canonical table ``reports``: the clock of each trace file; None: each has its own clock.
    processes
        ``process, rank, node``, for the keys ``rank`` and ``node``.
    between
        Time interval, ns. A transfer counts with all its bytes if it starts in the interval;
        ``busy_ns`` and ``exposed_ns`` count the time of transfers inside the interval.
    hosts
        Device -> name of its host, for the keys ``nic`` and ``hosts``.
    phases
        ``process, iteration, phase``, for the key ``phase``.
    computing
        Intervals in which GPUs compute, from `computing_times`, for the keys ``nic`` and ``hosts``.
    groups
        ``op, group, parallelism``, for the keys ``group`` and ``parallelism``.

    Returns
    -------
    The columns of the keys, then those of the command `links`; rows of different ``evidence``
    (measured, modelled) are never added. If a row has transfers from trace files on several clocks,
    ``busy_ns`` and columns derived from it are null; ``exposed_ns`` is null if it depends on a GPU
    on another clock.

    In rows with the evidence ``modelled between`` (unknown algorithm), ``bytes`` and utilisation
    are null unless least and most bytes are equal; ``busy_ns`` is null if one of the possible
    algorithms moves nothing in this row. Transfers from a switch to a GPU count only by ``link``;
    by other keys only the transfers from GPUs to the switch count.

    Raises
    ------
    UsageError
        If a key is unknown, or needs processes, phases or groups that are not given.
    """
    keys = parse_link_keys(by)
    of_processes = [key for key in keys if key in OF_PROCESSES]
    needs = {"ranks": (of_processes, processes), "phases": (["phase"], phases),
             "groups": (_OF_GROUPS, groups)}  # fmt: skip
    for noun, (needs_it, argument) in needs.items():
        if (wanted := next((key for key in keys if key in needs_it), None)) and argument is None:
            raise UsageError(f"links by {wanted} need {noun}", "give what this function takes")
    routes = Routes(machine, place)
    sums = _Sums(keys, between, computing if {"nic", "hosts"} & {*keys} else None)
    in_turn = [(transfers, EVER)] if isinstance(transfers, pl.DataFrame) else transfers
    for piece, until in in_turn:
        some = piece.drop("second_op", "collective", *_of_keys_alone(keys, phases, groups))
        if between is not None:
            begin, end = between
            some = some.filter((pl.col("start") < end) & (pl.col("end") > begin))
        rows = _over_links(some.filter(_counts(keys)), routes, keys)
        rows = _of_network(rows, keys, machine, place, hosts or {})
        if processes is not None and of_processes:
            owners = processes.select("process", *of_processes)
            rows = rows.join(owners, on="process", how="left", maintain_order="left")
        if groups is not None:
            rows = rows.join(groups, on="op", how="left", maintain_order="left")
        if phases is not None and "phase" in keys:
            rows = rows.join(phases, on=["process", "iteration"], how="left", maintain_order="left")
        sums.add(with_clocks(rows, REPORTS.empty() if reports is None else reports), some, until)
    return sums.table(window_ns)


class _Sums:
    """Sums of traffic by keys, to which transfers are added in order of time; see `links`."""

    def __init__(
        self,
        keys: Sequence[str],
        between: tuple[int, int] | None,
        computing: Computing | None,
    ) -> None:
        self._keys, self._between, self._computing = keys, between, computing
        names = [name for key in keys for name in _COLUMNS[key]]
        self._columns = [*dict.fromkeys(names), "evidence"]
        self._peak = next((_WITH_PEAK[key] for key in keys if key in _WITH_PEAK), None)
        self._sums: dict[str, pl.DataFrame] = {}
        self._busy = self._sized = self._exposed = Covered([*self._columns, "clock"])
        self._has_choices = False

    def add(self, rows: pl.DataFrame, transfers: pl.DataFrame, until: int) -> None:
        """Add rows of transfers; no transfer that a later call adds starts before `until`."""
        texts = [name for name in self._columns if rows.schema[name] == pl.String]
        rows = rows.with_columns(pl.col(texts).cast(pl.Categorical))  # a quarter of the memory
        counts = Stretch(self._between).holds()
        size = pl.when(counts).then("bytes")
        peak = pl.lit(None, pl.Int64) if self._peak is None else pl.col(self._peak)
        self._add_up("sums", rows.select(
            *self._columns, transfers=counts.cast(pl.Int64),
            unsized=(counts & pl.col("bytes").is_null()).cast(pl.Int64), bytes=size, peak=peak,
        ))  # fmt: skip
        # Times on different clocks cannot be compared: what overlaps between them is not known.
        so_far, cut = self._busy, _cut(rows, self._between)
        self._busy = so_far.plus(cut, until)
        if self._between is None and self._sized is so_far and not rows["bytes"].null_count():
            self._sized = self._busy
        else:
            self._sized = self._sized.plus(rows.filter(size.is_not_null()), until)
        if self._computing is not None:
            self._add_exposed(cut, self._computing, until)
        either = pl.col("choice").is_not_null() & counts
        self._add_choices(rows.filter(either), transfers.filter(either))

    def _add_up(self, name: str, rows: pl.DataFrame) -> None:
        """Add rows (or partial sums) to the table of sums named `name`, grouped by the keys."""
        known = self._sums.get(name)
        both = rows if known is None else pl.concat([known, rows])
        self._sums[name] = both.group_by(self._columns).agg(_TOTALS[name])

    def _add_exposed(self, cut: pl.DataFrame, computing: Computing, until: int) -> None:
        """Add time of transfers while their GPU computes nothing; others follow from `until` on."""
        times = cut.select(*self._columns, "clock", "start", "end", device="end_device")
        parts = exposed_parts(times.unique(), computing)
        unknown = parts.select(*self._columns, is_unknown=pl.col("start").is_null())
        self._add_up("unknown", unknown)
        self._exposed = self._exposed.plus(parts.drop_nulls("start"), until)

    def _add_choices(self, rows: pl.DataFrame, transfers: pl.DataFrame) -> None:
        """Add least and most bytes of collectives that may have run one of several algorithms.

        `rows` are their transfers by link or other keys.
        """
        of_all = transfers.group_by("choice").agg(algorithms=pl.col("algorithm").n_unique())
        self._has_choices |= not of_all.is_empty()
        each = _alternatives(rows, self._columns).join(of_all, on="choice")
        by_all = pl.col("seen") == pl.col("algorithms")
        self._add_up("choices", each.select(
            *self._columns, collectives=pl.lit(1, pl.Int64), is_sure=by_all,
            least_bytes=pl.when(by_all).then("least").otherwise(0), most_bytes="most",
        ))  # fmt: skip

    def table(self, window_ns: int | None) -> pl.DataFrame:
        """Return the table of `links`; shares are of `window_ns`."""
        sums = self._sums["sums"].with_columns(peak_gb_s=pl.col("peak") / _GB_S)
        for covered, name in ((self._busy, "busy_ns"), (self._sized, "sized_ns")):
            sums = self._joined(sums, covered.by_columns(self._columns, name))
        # Bytes per ns are GB/s.
        achieved = pl.when(pl.col("sized_ns") > 0).then(pl.col("bytes") / pl.col("sized_ns"))
        sums = sums.with_columns(achieved_gb_s=achieved)
        if self._computing is not None:
            sums = self._joined(sums, self._exposed.by_columns(self._columns, "exposed_ns"))
            sums = self._joined(sums, self._sums["unknown"])
            exposed = pl.col("exposed_ns").fill_null(0)
            is_known = ~pl.col("is_unknown").fill_null(value=False)
            sums = sums.with_columns(exposed_ns=pl.when(is_known).then(exposed))
        if {"link", "nic"} & {*self._keys}:
            sums = self._without_mixed_clocks(sums)
        if self._has_choices:
            sums = _bounded(self._joined(sums, self._sums["choices"]))
        sums = sums.with_columns(pl.col(pl.Categorical).cast(pl.String))
        return _arranged(sums, self._keys, self._columns, self._peak, window_ns)

    def _joined(self, sums: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        return sums.join(
            others, on=self._columns, how="left", nulls_equal=True, maintain_order="left"
        )

    def _without_mixed_clocks(self, sums: pl.DataFrame) -> pl.DataFrame:
        """Set times to null for links with traffic on several clocks, whose overlap is unknown."""
        clocks = self._busy.groups.group_by(self._columns).agg(is_mixed=pl.len() > 1)
        joined = self._joined(sums, clocks)
        return joined.with_columns(
            pl.when(~pl.col("is_mixed")).then(name).alias(name)
            for name in ("busy_ns", "sized_ns", "achieved_gb_s", "exposed_ns")
            if name in joined.columns
        ).drop("is_mixed")


def _over_links(transfers: pl.DataFrame, routes: Routes, keys: Sequence[str]) -> pl.DataFrame:
    """Return transfers with their routes or, by ``link`` or ``nic``, a row per link they cross."""
    needs_ends = bool({"nic", "hosts", "pair", "route"} & {*keys})
    if not {"link", "nic"} & {*keys}:
        return routes.of(transfers)
    crossed = routes.crossings(transfers, is_short=not needs_ends)
    return routes.of(crossed) if {"pair", "route"} & {*keys} else crossed


def _of_keys_alone(keys: Sequence[str], *joined: pl.DataFrame | None) -> set[str]:
    """Return the columns of transfers that neither the keys nor the tables `joined` need."""
    needed = {*keys, *(name for each in joined if each is not None for name in each.columns)}
    of_processes = {"process"} if needed & {*OF_PROCESSES} else set()
    return {"op", "process", "stage", "iteration"} - needed - of_processes


def _of_network(
    rows: pl.DataFrame,
    keys: Sequence[str],
    machine: Machine,
    place: Mapping[int, int],
    hosts: Mapping[int, str | None],
) -> pl.DataFrame:
    """Keep only transfers between hosts, adding NIC or hosts, if a key is ``nic`` or ``hosts``."""
    if "hosts" in keys:
        of = pl.DataFrame({"device": [*hosts], "host": [*hosts.values()]},
                          schema={"device": pl.Int32, "host": pl.String})  # fmt: skip
        for end in ("src", "dst"):
            named = of.rename({"device": f"{end}_device", "host": f"{end}_host"})
            rows = rows.join(named, on=f"{end}_device", how="left", maintain_order="left")
        rows = rows.filter(pl.col("src_host") != pl.col("dst_host"))
        rows = rows.with_columns(end_device="src_device")
    if "nic" in keys:
        nics = network_nodes(machine, place, hosts)
        leaves = pl.col("dst").str.starts_with(_FABRIC)
        number = pl.when(leaves).then("src_nic").otherwise("dst_nic")
        rows = (
            rows.filter(pl.any_horizontal(pl.col("src", "dst").str.starts_with(_FABRIC)))
            .with_columns(
                node=pl.when(leaves).then("src").otherwise("dst"),
                direction=pl.when(leaves).then(pl.lit("out")).otherwise(pl.lit("in")),
                end_device=pl.when(leaves).then("src_device").otherwise("dst_device"),
            )
            .join(nics, on="node", how="left", maintain_order="left")
            .with_columns(
                nic_by=pl.when(pl.col("nic").is_not_null()).then(
                    pl.when(number.is_null()).then(pl.lit("nearest")).otherwise(pl.lit("log"))
                )
            )
            .join(
                _through_host(machine, place),
                on=["node", "direction", "end_device"],
                how="left",
                maintain_order="left",
            )
            .with_columns(memory=pl.coalesce("memory", pl.when(nic_by="log").then(pl.lit("gpu"))))
        )
    return rows


def _through_host(machine: Machine, place: Mapping[int, int]) -> pl.DataFrame:
    """Return ``node`` (NIC), ``direction``, GPU of pairs whose data pass through host memory."""
    rows = [
        (nic, direction, device, "host")
        for device, gpu in place.items()
        for pair in machine.through_host
        for (end, nic), direction in ((pair, "out"), (pair[::-1], "in"))
        if end == f"GPU{gpu}"
    ]
    schema = {"node": pl.String, "direction": pl.String, "end_device": pl.Int32,
              "memory": pl.String}  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def network_nodes(
    machine: Machine, place: Mapping[int, int], hosts: Mapping[int, str | None]
) -> pl.DataFrame:
    """Return ``node, host, nic`` of all nodes on hosts; ``nic`` is null if the node is no NIC."""
    named = {
        machine.host_of[f"GPU{gpu}"]: hosts[device]
        for device, gpu in place.items()
        if device in hosts
    }
    rows = [
        (node, named.get(host), _nic_name(machine, node)) for node, host in machine.host_of.items()
    ]
    schema = {"node": pl.String, "host": pl.String, "nic": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _nic_name(machine: Machine, node: str) -> str | None:
    """Return a NIC's name in the operating system, else its index on the host; None: no NIC."""
    known = machine.graph.nodes[node]
    if known.get("type") != "nic":
        return None
    number = known.get("index")
    return str(known.get("name") or (node if number is None else f"NIC{number}"))


def _counts(keys: Sequence[str]) -> pl.Expr:
    """Select the transfers that are counted in a table by `keys`.

    With ``pair`` they are those between two known GPUs; with ``link`` or ``nic``, all; otherwise,
    all but what an NVSwitch sends on.
    """
    src, dst = pl.col("src_device"), pl.col("dst_device")
    if "pair" in keys:
        return src.is_not_null() & dst.is_not_null()
    handed = pl.col("at_switch").fill_null(value=False) & src.is_null()
    return pl.lit(value=True) if {"link", "nic"} & {*keys} else ~handed


def _bounded(sums: pl.DataFrame) -> pl.DataFrame:
    """Correct sums that contain collectives which may have run one of several algorithms.

    ``transfers`` becomes the number of these collectives. Bytes are known if least and most bytes
    are equal; ``busy_ns`` is null unless each algorithm moves bytes there.
    """
    is_one = pl.col("least_bytes") == pl.col("most_bytes")
    of_choices = pl.col("collectives").is_not_null()
    return sums.with_columns(
        transfers=pl.coalesce("collectives", "transfers"),
        unsized=pl.when(of_choices).then(0).otherwise("unsized").cast(pl.Int64),
        bytes=pl.when(of_choices & is_one).then("least_bytes").otherwise("bytes"),
        busy_ns=pl.when(pl.col("is_sure").fill_null(value=True)).then("busy_ns"),
    ).drop("collectives", "is_sure")


def _alternatives(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the least and most bytes of each collective under its possible algorithms.

    Columns: `columns` (such as the link), ``choice`` (the collective), ``least, most`` and
    ``seen``, the number of these algorithms that move bytes in the group of `columns`.
    """
    moved = pl.col("moved")
    return (
        rows.drop_nulls("choice")
        .group_by(*columns, "choice", "algorithm").agg(moved=pl.col("bytes_if").sum())
        .group_by(*columns, "choice").agg(least=moved.min(), most=moved.max(), seen=pl.len())
    )  # fmt: skip


def _cut(rows: pl.DataFrame, between: tuple[int, int] | None) -> pl.DataFrame:
    """Limit the start and end times of transfers to the interval `between`."""
    if between is None:
        return rows
    begin, end = between
    return rows.with_columns(
        pl.col("start").clip(lower_bound=begin), pl.col("end").clip(upper_bound=end)
    )


def _arranged(
    sums: pl.DataFrame,
    keys: Sequence[str],
    columns: Sequence[str],
    peak: str | None,
    window_ns: int | None,
) -> pl.DataFrame:
    bounds = [name for name in ("least_bytes", "most_bytes") if name in sums.columns]
    measures = ["transfers", "unsized", "bytes", *bounds, "busy_ns", "achieved_gb_s"]
    if peak is not None:
        measures += ["peak_gb_s", "utilisation"]
        measures += [name.replace("bytes", "utilisation") for name in bounds]
        full = pl.col(bounds) / pl.col("busy_ns") / pl.col("peak_gb_s")
        sums = sums.with_columns(full.name.replace("bytes", "utilisation"))
    table = sums.with_columns(
        utilisation=pl.col("achieved_gb_s") / pl.col("peak_gb_s"),
        share=pl.col("busy_ns") / pl.lit(window_ns or None, pl.Int64),
    )
    first = [name for name in ("iteration",) if name in keys]
    order = [
        pl.col(first),
        -pl.coalesce("bytes", *bounds[1:]),
        pl.col([name for name in columns if name not in first]),
    ]
    shares = ["share"]
    if "exposed_ns" in table.columns:
        # Of a sum over algorithms of which one ran neither time is known.
        exposed = pl.when(pl.col("busy_ns").is_not_null()).then("exposed_ns")
        table = table.with_columns(exposed_ns=exposed).with_columns(
            exposed_share=pl.col("exposed_ns") / pl.lit(window_ns or None, pl.Int64)
        )
        shares += ["exposed_ns", "exposed_share"]
    return table.sort(order, nulls_last=True).select(*columns, *measures, *shares)


def traffic_window(trace: Trace) -> int:
    """Return the time from the first to the last op of a run, ns.

    Trace files whose clocks cannot be compared count one by one: their times are added. If the
    trace is limited to a time span, the result is the recorded time in that span; if the trace is
    limited to steps, the time from the first to the last of these.
    """
    edges = excerpt(trace).edges
    if not trace.stretch.is_all:
        windows = chosen_windows(trace, skip=0, per_iteration=False)
        reports = trace["devices"].select("device", "report")
        spans = windows.lazy().select("device", "start", "end").join(reports, on="device")
        edges = spans.select("report", "start", "end")
    timed = with_clocks(edges.collect(), trace.read("reports")).group_by("clock")
    return int(timed.agg(pl.col("end").max() - pl.col("start").min())["end"].sum())


def placed_share(transfers: pl.DataFrame, routes: Routes) -> dict[str, int]:
    """Return numbers of transfers: in all, of known route, and of known size.

    Returns
    -------
    ``transfers``: their number; ``routed``: number with a known route; ``sized``: number of known
    size.
    """
    return {
        "transfers": transfers.height,
        "routed": routes.of(transfers)["route"].count(),
        "sized": transfers.select(pl.coalesce("bytes", "bytes_if").count()).item(),
    }


def listed_transfers(transfers: pl.DataFrame, routes: Routes, keys: Sequence[str]) -> int:
    """Return the number of transfers that `links` counts for the keys `keys`."""
    counted = routes.of(transfers.filter(_counts(keys)))
    if "nic" in keys:
        return int(counted["route"].str.contains(_FABRIC).sum())
    return counted["route"].count() if "link" in keys else counted.height


def expected_traffic(transfers: pl.DataFrame, parameters: int, iterations: int) -> dict[str, Any]:
    """Compare the bytes that data-parallel training must exchange with the bytes moved.

    In each iteration, gradients of S bytes (4 per parameter) are summed over n GPUs, and weights or
    the sum are sent back: 2 (n - 1) S bytes in all, through one GPU (a star), through several, or
    along rings. Transfers outside of iterations, such as the first weights, do not count. Nothing
    is expected unless most of the others, by bytes, are of weight updates.

    Parameters
    ----------
    transfers
        One row per movement of data, as in the table `TRANSFERS`.
    parameters
        Number of the model's parameters.
    iterations
        Number of iterations of the run.

    Returns
    -------
    ``gpus``, ``gradient_bytes`` (S), ``expected_bytes`` and ``observed_bytes`` in each iteration,
    ``ratio`` of observed over expected (each None if unknown). ``unsized``: number of transfers of
    unknown size, which are left out; ``evidence``: ``modelled`` if the size of any transfer is
    modelled, else ``measured``. If the algorithm is unknown, ``least_bytes`` and ``most_bytes``
    bound the observed bytes.
    """
    at_switch = pl.col("at_switch").fill_null(value=False)
    between = transfers.filter(
        pl.col("src_device").is_not_null(), pl.col("dst_device").is_not_null() | at_switch
    )
    inside = between.drop_nulls("iteration")
    sized = inside.drop_nulls("bytes")
    ends = pl.concat([between["src_device"], between["dst_device"].drop_nulls()])
    gpus = ends.n_unique()
    size = 4 * parameters
    moved = pl.coalesce("bytes", "bytes_if", 1)
    of_updates = moved.filter(pl.col("stage") == "WU")
    updated, total = inside.select(of_updates.sum(), total=moved.sum()).row(0)
    expected = 2 * (gpus - 1) * size if 2 * updated > total else None
    known, bounds = sized.height > 0 and iterations > 0, {}
    observed = int(sized["bytes"].sum()) / iterations if known else None
    modelled = (sized["evidence"] == "modelled").any()
    either = _either(inside)
    if either and iterations > 0:
        known, low, high = True, *((sized["bytes"].sum() + size) / iterations for size in either)
        bounds = {"least_bytes": low, "most_bytes": high}
        observed, modelled = None, True
    ratio = None if observed is None or not expected else observed / expected
    return {
        "gpus": gpus,
        "gradient_bytes": size,
        "expected_bytes": expected,
        "observed_bytes": observed,
        "ratio": ratio,
        "unsized": inside.filter(pl.col("choice").is_null()).height - sized.height,
        "evidence": None if not known else "modelled" if modelled else "measured",
        **bounds,
    }


def _either(transfers: pl.DataFrame) -> tuple[int, int] | None:
    """Return the total bytes, least and most, of collectives whose algorithm is unknown."""
    each = _alternatives(transfers, ())
    return None if each.is_empty() else (int(each["least"].sum()), int(each["most"].sum()))
