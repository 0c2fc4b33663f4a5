"""Traffic of a run on its machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import polars as pl

from tracekit.analysis.calls import (
    collective_calls,
    groups_of_ops,
    in_stretch,
    nccl_messages,
    process_ranks,
    unsized_of_others,
    why_unsized,
)
from tracekit.analysis.facts import LEAST, how_to_record, largest, step_phases
from tracekit.analysis.traffic._collective_transfers import (
    AT_ONCE,
    Modelled,
    Ranks,
    link_bounds,
    message_transfers,
    rank_devices,
    sent_by_each,
    unmodelled,
    unrecorded,
)
from tracekit.analysis.traffic._counters import link_counters
from tracekit.analysis.traffic._link_time import EVER, computing_times, link_timeline
from tracekit.analysis.traffic._links import (
    expected_traffic,
    links,
    listed_transfers,
    parse_link_keys,
    placed_share,
    traffic_window,
)
from tracekit.analysis.traffic._routes import Routes
from tracekit.analysis.traffic._transfers import copy_transfers, traffic_root
from tracekit.engine import iterations_in
from tracekit.errors import UsageError
from tracekit.machine import Machine, NcclLog, Placed, reducing_gpus, with_nics
from tracekit.model import TRANSFERS, Answer, Stretch, Trace, with_clocks
from tracekit.support.wording import (
    count,
    first_line,
    note,
    part_text,
    percent,
    printable,
    size_text,
    summary,
    text_of,
)

_FULL = 1.05
"""Utilisation above which a link is reported as overfull: peaks and clocks have some percent of
error.
"""
_FIGURES = {
    "matrix": "matrix", "drawing": "machine", "timeline": "timeline", "network": "network",
}  # fmt: skip
_HALF = 0.5
_OFF = 0.05
"""Relative difference from a counter above which the GPU or NIC is named."""
_ONE_HOST = "all GPUs of the run are on one host: what it exchanges with others is not known"
_NOTHING_MOVED = "no transfers of the kinds that these keys list, whose ends and route are known"


class _Facts(NamedTuple):
    """Results of one pass over all transfers of a run: traffic by link, and other sums.

    ``share``: see `placed_share`; ``choices``: possible algorithms of collectives; ``ops``: the ops
    that moved bytes.
    """

    by_link: pl.DataFrame
    share: Mapping[str, int]
    choices: pl.DataFrame
    ops: pl.Series


@dataclass(frozen=True)
class Traffic:
    """Transfers of a run, and the machine (GPUs, NICs, links) over which they went."""

    trace: Trace
    """The run."""
    placed: Placed
    """The machine, with the mapping device of the run -> GPU of the machine."""
    log: NcclLog | None = None
    """An NCCL log of the run, or None."""
    sizes: Mapping[str, int] | None = None
    """Collective (such as ``all_reduce``) -> bytes, for calls whose size was not recorded."""
    ranks: int | None = None
    """Number of ranks of communicators whose size was not recorded; or None."""

    @cached_property
    def calls(self) -> pl.DataFrame:
        """Participants of the run's collectives, one row each: the table `COLLECTIVE_CALLS`."""
        return collective_calls(self.trace, self.log, self.sizes)

    @cached_property
    def transfers(self) -> pl.DataFrame:
        """Transfers that start in the chosen time span, or lie in the chosen steps, of the run."""
        return self._inside(self.all_transfers)

    def _inside(self, transfers: pl.DataFrame) -> pl.DataFrame:
        stretch = self.trace.stretch
        return transfers if stretch.is_all else transfers.filter(stretch.holds())

    @cached_property
    def all_transfers(self) -> pl.DataFrame:
        """Movements of data (table `TRANSFERS`): copies, messages, transfers of collectives.

        Raises
        ------
        UsageError
            If the log belongs to another run.
        """
        both = pl.concat([self._recorded, self._modelled.transfers()])
        return both.sort("report", "start", maintain_order=True)

    @cached_property
    def _recorded(self) -> pl.DataFrame:
        """Transfers by copies, and the NCCL messages whose peer and size are known."""
        copies = copy_transfers(self.trace, self.machine, self.placed.place)
        return pl.concat([copies, self._messages])

    @cached_property
    def _messages(self) -> pl.DataFrame:
        return message_transfers(nccl_messages(self.trace, self.log), self.calls, self._known)

    @cached_property
    def _modelled(self) -> Modelled:
        return Modelled(unrecorded(self.calls, self._messages), self._known)

    def _in_turn(self) -> Iterator[tuple[pl.DataFrame, int]]:
        """Yield all transfers, in batches of rows that need little memory.

        Each batch comes with a time before which no transfer of a later batch starts.
        """
        recorded = self._recorded.select("start", transfers=pl.lit(1, pl.UInt32))
        numbers = pl.concat([recorded, self._modelled.starts]).sort("start")
        piece = numbers["transfers"].cum_sum() // AT_ONCE
        borders = numbers.filter(piece > piece.shift(1))["start"].unique().sort()
        if borders.is_empty():
            yield self.all_transfers, EVER
            return
        for since, until in pairwise([-EVER, *borders, EVER]):
            during = Stretch((since, until))
            recorded = self._recorded.filter(during.holds())
            yield pl.concat([recorded, self._modelled.transfers(during)]), until

    @cached_property
    def _routes(self) -> Routes:
        return Routes(self.machine, self.placed.place)

    @cached_property
    def crossings(self) -> pl.DataFrame:
        """One row per transfer and link, see `crossings`."""
        return self._routes.crossings(self.transfers)

    def sent(self) -> pl.DataFrame:
        """Return bytes that GPUs send, and least time that links allow, by collective kernel.

        Returns
        -------
        The columns of `sent_by_each` and ``bound_ns`` of `link_bounds`; null if unknown.
        """
        bounds = link_bounds(self.calls, self._known)
        return sent_by_each(self.calls, self._known).join(bounds, on="op", how="left")

    @cached_property
    def machine(self) -> Machine:
        """The machine; GPUs to which it assigns no NIC get the NIC that the NCCL log names."""
        machine, place = self.placed.machine, self.placed.place
        if self.log is None or not machine.nodes("fabric"):
            return machine
        over = self.log.connections.filter(kind="net")
        ends = (("from_rank", "src", True), ("to_rank", "dst", False))
        used = pl.concat(
            over.select(
                "communicator", pl.lit(sends).alias("sends"), rank=pl.col(rank).cast(pl.Int32),
                nic=f"{end}_nic", direct=f"{end}_direct",
            )
            for rank, end, sends in ends
        )  # fmt: skip
        pairs = used.drop_nulls().join(self._rank_devices(), on=["communicator", "rank"])
        # Of connections that differ those count that most are like.
        known = pairs.group_by("device", "nic", "sends").agg(pl.col("direct").mean() >= _HALF)
        taken = [
            (place[device], nic, sends, direct)
            for device, nic, sends, direct in known.sort("device", "nic", "sends").iter_rows()
        ]
        return with_nics(
            machine,
            {(gpu, nic) for gpu, nic, _, direct in taken if direct},
            self._nic_names(self.log, over["transport"]),
            through_host=[(gpu, nic, sends) for gpu, nic, sends, direct in taken if not direct],
        )

    def _nic_names(self, log: NcclLog, transports: pl.Series) -> dict[int, dict[int, str]]:
        """Return host -> (NIC index -> name), for NICs by which ranks are connected in the log.

        `transports` are the texts of connections, which name the type of network.
        """
        networks = transports.str.extract(r"^NET/(\w+)/").drop_nulls().unique()
        ranks = log.ranks.select("host", "communicator", pl.col("rank").cast(pl.Int32))
        devices = ranks.join(self._rank_devices(), on=["communicator", "rank"])
        machine, place = self.placed.machine, self.placed.place
        hosts = {
            host: machine.host_of[f"GPU{place[device]}"]
            for host, device in devices.select("host", "device").unique().iter_rows()
        }
        names: dict[int, dict[int, str]] = {}
        if len(networks) == 1:
            of_one = log.nics.filter(network=networks[0])
            for host, nic, name in of_one.select("host", "nic", "name").iter_rows():
                if host in hosts:
                    names.setdefault(hosts[host], {})[nic] = name
        return names

    @cached_property
    def _known(self) -> Ranks:
        """Devices and GPUs of ranks, and GPUs with an NVSwitch that can reduce (see `Ranks`)."""
        placed = self.placed
        ranks = self._rank_devices()
        return Ranks(self.machine, placed.place, ranks, self.log, self.ranks, self._reducing())

    @cached_property
    def _reports(self) -> pl.DataFrame:
        return self.trace.read("reports")

    def _reducing(self) -> frozenset[int]:
        """Return the GPUs of the machine whose NVSwitch can reduce and multicast."""
        names = dict(self.trace.read("devices").select("device", "name").rows())
        place = self.placed.place
        return reducing_gpus(self.placed.machine, {place[d]: names[d] for d in names if d in place})

    @cached_property
    def _hosts(self) -> dict[int, str | None]:
        """Device -> name of its host."""
        devices = self.trace.read("devices").select("device", "report")
        named = devices.join(self._reports.select("report", "host"), on="report", how="left")
        return dict(named.select("device", "host").iter_rows())

    def _rank_devices(self) -> pl.DataFrame:
        hosts = self._reports.select("report", "host")
        owners = (self.trace.read(name).join(hosts, on="report", how="left")
                  for name in ("processes", "devices"))  # fmt: skip
        return rank_devices(self.calls, self.log, *owners)

    @cached_property
    def window_ns(self) -> int:
        """Time from the first to the last op of the run, ns: see `traffic_window`."""
        return traffic_window(self.trace)

    def links(
        self, by: str | Sequence[str] = "link", *, only_measured: bool = False
    ) -> pl.DataFrame:
        """Return traffic by link and other keys; see `tracekit.analysis.communication.links`.

        With `only_measured`, modelled transfers are left out, and not even computed.
        """
        if only_measured:
            return self._summed(by, [(self._recorded.filter(evidence="measured"), EVER)])
        return self._summed(by, self._in_turn())

    def _summed(
        self, by: str | Sequence[str], pieces: Iterable[tuple[pl.DataFrame, int]]
    ) -> pl.DataFrame:
        between, keys = self.trace.stretch.between, parse_link_keys(by)
        inside = ((some if between else self._inside(some), until) for some, until in pieces)
        return links(
            inside, self.machine, self.placed.place, by=keys,
            window_ns=self.window_ns, reports=self._reports, processes=process_ranks(self.trace),
            between=between, hosts=self._hosts, phases=self._phases(keys),
            groups=self._groups if {"group", "parallelism"} & {*keys} else None,
            computing=computing_times(self.trace) if {"nic", "hosts"} & {*keys} else None,
        )  # fmt: skip

    @cached_property
    def _facts(self) -> _Facts:
        """Traffic by link and the other fields of `_Facts`, from one pass over all transfers."""
        shares: list[dict[str, int]] = []
        choices: list[pl.DataFrame] = []
        ops: list[pl.Series] = []

        def looked_at() -> Iterator[tuple[pl.DataFrame, int]]:
            for some, until in self._in_turn():
                inside = self._inside(some)
                shares.append(placed_share(inside, self._routes))
                choices.append(inside.drop_nulls("choice").select("choice", "algorithm").unique())
                ops.append(pl.concat([some["op"], some["second_op"]]).drop_nulls().unique())
                yield some, until

        by_link = self._summed("link", looked_at())
        share = {name: sum(each[name] for each in shares) for name in shares[0]}
        return _Facts(by_link, share, pl.concat(choices), pl.concat(ops))

    @cached_property
    def _groups(self) -> pl.DataFrame:
        """Group of ranks of each collective kernel, by name: ``op, group, parallelism``."""
        return groups_of_ops(self.trace, self.calls).select("op", "group", "parallelism")

    def _phases(self, keys: Sequence[str]) -> pl.DataFrame | None:
        """Return the phase of each process's steps if a key is ``phase``, else None."""
        if "phase" not in keys:
            return None
        return step_phases(self.trace).select("process", "iteration", "phase")

    def answer(
        self,
        by: str | Sequence[str] = "link",
        *,
        counters: bool = False,
        parameters: int | None = None,
    ) -> Answer:
        """Return traffic summed by the keys `by`, or its comparison with hardware counters.

        Parameters
        ----------
        by
            As for `tracekit.analysis.communication.links`.
        counters
            Whether to return the rows of `link_counters` instead.
        parameters
            Number of the model's parameters, from which ``meta["expected"]`` (bytes) is computed.
        """
        keys = parse_link_keys(by)
        if not self.trace.stretch.is_all and (counters or parameters is not None):
            raise UsageError(
                "counters and parameters are compared with a whole run",
                "leave out --between and --iterations",
            )
        is_of_one_host = {"nic", "hosts"} & {*keys} and len(self.machine.hosts) == 1
        nothing = _ONE_HOST if is_of_one_host else _NOTHING_MOVED
        if counters:
            nothing = f"no counters were sampled: {how_to_record(self.trace, 'link counters')}"
        listed: list[int] = []

        def counted() -> Iterator[tuple[pl.DataFrame, int]]:
            for some, until in self._in_turn():
                listed.append(listed_transfers(self._inside(some), self._routes, keys))
                yield some, until

        if counters:
            rows = self.counters()
        elif keys == ("link",):
            rows = self._facts.by_link
            listed.append(self._facts.share["routed"])
        else:
            rows = self._summed(keys, counted())
        expected = {} if parameters is None else {"expected": self.expected(parameters)}
        meta = self.meta()
        if "nic" in keys and not counters:
            # What the rows rest on comes before what is true of the whole run.
            meta["warnings"] = self._assumed_nics(rows) + meta["warnings"]
        return Answer(
            rows=rows,
            meta={**meta, **({"listed": sum(listed)} if listed else {}), **expected},
            title="attributed against counted bytes"
            if counters
            else f"traffic by {', '.join(keys)}",
            empty=nothing,
            command="links",
            figures=_FIGURES,
            source=self,
        )

    def _assumed_nics(self, rows: pl.DataFrame) -> list[str]:
        """Return warnings: transfers of unknown NIC, and assumptions by which NICs were found.

        An assumption is that traffic uses the NIC nearest to its GPU. `rows`: traffic by ``nic``.
        """
        how = "NCCL_DEBUG=INFO logs it (--nccl-log)"
        found = []
        if rows["nic"].null_count():
            found.append(
                f"NICs are unknown where none is named: {how}, or give a --topology with NICs"
            )
        if (rows["nic_by"] == "nearest").any():
            found.append(
                "NICs are assumed to be those nearest to the GPUs, and rings between hosts to use"
                f" all of them alike: {how}"
            )
        named = {*self.placed.machine.nodes("nic")}
        if named and (rows["nic_by"] == "log").any():
            found.append(
                "NICs of the log are assumed to be those with the same number in"
                f" {self.placed.machine.name}"
            )
        return found

    def timeline_note(self) -> str | None:
        """Note on what the method `timeline` leaves out: files on other clocks, some collectives.

        The collectives left out have an unknown algorithm. None if nothing is left out.
        """
        notes = [self._apart(), self._between("on no timeline")]
        return "; ".join(note for note in notes if note) or None

    def _between(self, where: str) -> str | None:
        """Return a note: number of collectives of uncertain algorithm, and the text `where`."""
        choices = self._facts.choices
        number = choices["choice"].n_unique()
        names = choices["algorithm"].unique().sort(descending=True)
        if not number:
            return None
        which = " or ".join(names)
        return f"{number:,} NCCL collectives ran {which}, which of these is unknown: {where}"

    def _apart(self) -> str | None:
        """Return a note naming files whose clock is not that of the first file with traffic."""
        moved = self.transfers.drop_nulls("bytes").select("report").unique(maintain_order=True)
        clocks = with_clocks(moved.sort("report"), self._reports)["clock"]
        apart = len(clocks) - int((clocks == clocks[0]).sum()) if len(clocks) else 0
        if not apart:
            return None
        return f"{apart} of {len(clocks)} reports are left out: their clocks are not aligned"

    @cached_property
    def recorded(self) -> frozenset[int]:
        """Indices of the devices that ran ops; the traffic of other devices is unknown."""
        return frozenset(self.trace.read("devices").filter("active")["device"])

    def timeline(self, bins: int = 200) -> pl.DataFrame:
        """Return the traffic of links over time; see `link_timeline`."""
        place = self.placed.place
        return link_timeline(self.transfers, self.machine, place, bins=bins, reports=self._reports)

    def contradictions(self) -> tuple[str, ...]:
        """Return sentences on recorded copies that contradict the machine; see `contradictions`."""
        return contradictions(self._inside(self._recorded), self._routes)

    def counters(self) -> pl.DataFrame:
        """Compare measured and modelled bytes with counters; see `link_counters`."""
        moved = self.transfers if self.trace.height("metrics") else TRANSFERS.empty()
        return link_counters(self.trace, moved, self.machine, self.placed.place, self._hosts)

    def expected(self, parameters: int) -> dict[str, Any]:
        """Compare moved bytes with those that training must exchange; see `expected_traffic`."""
        some = self.calls.filter(pl.col("ranks") < len(self.recorded))["op"]
        is_of_some = pl.col("op").is_in(some.implode()).fill_null(value=False)
        moved = self.transfers.with_columns(stage=pl.when(~is_of_some).then("stage"))
        return expected_traffic(moved, parameters, iterations_in(self.trace, 0))

    def meta(self) -> dict[str, Any]:
        """Return the ``meta`` of the tables of traffic.

        Returns
        -------
        ``machine``, ``origin`` (how the machine is known) and ``placed_by`` (how the run's devices
        were matched with its GPUs); ``window_ns``; numbers of ``transfers``, of those with known
        route (``routed``) and size (``sized``); numbers of ``collectives``, of those of unknown
        size, and of those on no link; ``root``, the GPU through which all copies go (see
        `traffic_root`); ``warnings``.
        """
        calls = in_stretch(self.calls, self.trace.stretch)
        nccl = calls.filter(pl.col("library") == "nccl")
        sizes = pl.col("bytes", "sent_bytes", "received_bytes")
        unsized = nccl.filter(pl.all_horizontal(sizes.is_null())).height
        return {
            "machine": self.placed.machine.name,
            "origin": self.placed.machine.origin,
            "placed_by": self.placed.by,
            "window_ns": self.window_ns,
            **self._facts.share,
            "collectives": nccl.height,
            "collectives_of_unknown_size": unsized,
            "collectives_on_no_link": self._off_links.height,
            "root": traffic_root(self._inside(self._recorded)).to_dicts()[0],
            "warnings": self._warnings(nccl.height, unsized),
        }

    def _warnings(self, collectives: int, unsized: int) -> list[str]:
        devices = self.trace.read("devices")["device"].to_list()
        known = ((each, self.placed.place.get(each, each)) for each in sorted(devices))
        moved = [f"GPU {device} is GPU{place}" for device, place in known if device != place]
        found = list(self.placed.warnings)
        if moved:
            found.append(f"links name GPUs as the machine numbers them: {', '.join(moved)}")
        if self.log is not None:
            found += self.log.warnings
        found += [
            *unmodelled(self.calls, self.machine),
            *self._overfull(),
            *(self._against_counters() if self.trace.height("metrics") else ()),
        ]
        found += self._of_absent_ranks()
        if between := self._between(
            "bytes and utilisation lie between bounds; NCCL_DEBUG=INFO with"
            " NCCL_DEBUG_SUBSYS=INIT,TUNING logs which (--nccl-log)"
        ):
            found.append(between)
        found += unsized_of_others(self.calls)
        if unsized:
            found.append(
                f"{unsized:,} of {collectives:,} collective kernels are of unknown size and on no "
                f"link: {why_unsized(self.trace)}, or give --nccl-log or --bytes"
            )
        return found

    def _against_counters(self) -> list[str]:
        """Return warnings on how far modelled traffic differs from hardware counters, if known."""
        counted = self.counters().drop_nulls("counted_bytes")
        is_nic = pl.col("metric").cast(pl.String).str.starts_with("nic_")
        both = counted.filter(
            # A NIC by which nothing should go may be the one by which it goes.
            (pl.col("modelled_bytes") > 0)
            | (is_nic & (pl.col("counted_bytes") > 0) & (pl.col("measured_bytes") == 0))
        ).with_columns(of_nics=is_nic)
        found = [
            _held_against(str(metric), rows)
            for (metric,), rows in both.sort("metric").group_by("metric", maintain_order=True)
            if rows["modelled_bytes"].sum() and rows["counted_bytes"].sum()
        ]
        return found + self._unknown_nics(counted)

    def _unknown_nics(self, counted: pl.DataFrame) -> list[str]:
        """Return a warning of how many NICs have counter samples, but unknown traffic."""
        unknown = counted.filter(pl.col("nic").is_not_null(), pl.col("modelled_bytes").is_null())
        number = unknown.select("host", "nic").n_unique()
        if not number or not self.machine.nodes("fabric"):
            return []
        text = (
            f"{number} NICs were sampled, but the run's traffic over them is unknown:"
            " NCCL_DEBUG=INFO (--nccl-log) or a --topology with their names shows it"
        )
        return [text]

    @cached_property
    def _off_links(self) -> pl.DataFrame:
        """Calls of NCCL collectives (of several ranks) for which no transfer is known."""
        calls = in_stretch(self.calls, self.trace.stretch).filter(
            pl.col("library") == "nccl", pl.col("ranks").ne_missing(1)
        )
        placed = pl.col("op").is_in(self._facts.ops.implode())
        matched = pl.col("match").is_in(calls.filter(placed)["match"].drop_nulls().implode())
        return calls.filter(~(placed | matched.fill_null(value=False)))

    def _of_absent_ranks(self) -> list[str]:
        """Return warnings: collectives of known size on no link, as participants are unknown."""
        sized = self._off_links.drop_nulls("bytes")
        members = pl.when(pl.col("match").is_null()).then(1).otherwise(pl.len().over("match"))
        by_user = pl.col("bytes_source") == "user"
        reasons = {
            "of the size that was given are on no link, since it is not known how many ranks take"
            " part: give --ranks too": by_user
            & pl.all_horizontal(pl.col("ranks", "match").is_null()),
            "of known size are on no link, since GPUs that take part were not recorded: make one"
            " run of the reports of all ranks (--run NAME)": pl.col("ranks") > members,
        }
        lost = {why: sized.filter(holds).height for why, holds in reasons.items()}
        return [f"{number:,} collective kernels {why}" for why, number in lost.items() if number]

    def _overfull(self) -> list[str]:
        """Return warnings of links whose traffic would exceed their peak rate."""
        table = self._facts.by_link
        if "least_utilisation" in table.columns:
            table = table.with_columns(utilisation=pl.coalesce("utilisation", "least_utilisation"))
        full = table.filter(pl.col("utilisation") > _FULL)
        if full.is_empty():
            return []
        worst = full.sort("utilisation", descending=True).row(0, named=True)
        machine = self.machine
        why = (
            f"the peak of {machine.name} ({machine.origin}) is not that of this machine"
            if worst["evidence"] == "measured"
            else "the model, the sizes or the peak are wrong"
        )
        text = (
            f"{count(full.height, 'link')} would be fuller than full: {worst['src']}>{worst['dst']}"
            f" {percent(worst['utilisation'])} of {worst['peak_gb_s']:.1f} GB/s; {why}, so do not"
            " rely on utilisation: give --topology"
        )
        return [text]


def _held_against(metric: str, rows: pl.DataFrame) -> str:
    """Return a sentence: how far the bytes of transfers differ from a counter's (`metric`), where.

    It names the GPU or NIC at which they differ most.
    """
    measured, modelled, counted = (
        int(rows[f"{name}_bytes"].sum()) for name in ("measured", "modelled", "counted")
    )
    attributed = measured + modelled
    is_nic = metric.startswith("nic_")
    of = f"{rows.height} {'NICs' if is_nic else 'GPUs'}"
    if is_nic and rows["nic"].null_count():
        of = f"all NICs of {rows.height} hosts"
    sentence = (
        f"modelled traffic compared with {metric} of {of}: {attributed:,} bytes are attributed,"
        f" {modelled:,} of them by a model, and {counted:,} were counted"
        f" ({100 * (attributed / counted - 1):+.1f} %)"
    )
    off = rows.filter(pl.col("difference_share").abs() > _OFF)
    if rows.height > 1 and off.height:
        worst = off.sort(pl.col("difference_bytes").abs(), descending=True).row(0, named=True)
        where = f"GPU {worst['device']}"
        if is_nic:
            where = f"{worst['nic'] or 'NICs'} of {worst['host'] or 'an unnamed host'}"
        sentence += f", most on {where}: {100 * worst['difference_share']:+.1f} %"
    covered = rows["sampled_share"].drop_nulls().to_list()
    return f"{sentence}; samples cover {percent(min(covered))} of the time" if covered else sentence


# -- where measured traffic and the machine that it is put on contradict each other ------------


_OVER = 1.05
"""Ratio of a copy's rate to the peak above which the copy counts as impossible: clocks of GPUs and
peaks have some percent of error.
"""
_ALIKE = ["src_device", "dst_device", "route", "route_bandwidth"]


def contradictions(transfers: pl.DataFrame, routes: Routes) -> tuple[str, ...]:
    """Return sentences on copies that are impossible on this machine, one per pair of GPUs.

    These are copies between two GPUs that are more than 5 % faster than the narrowest link of their
    route, and copies between GPUs without a route.

    Parameters
    ----------
    transfers
        One row per movement of data, as in the table `TRANSFERS`.
    routes
        Routes of transfers over the machine.
    """
    copies = transfers.filter(
        pl.col("method").is_in(["p2p", "two_hop"]), pl.col("evidence") == "measured"
    ).drop_nulls(["src_device", "dst_device"])
    routed = routes.of(copies)
    return (*_too_fast(routed), *_nowhere(routed, routes.machine))


def _too_fast(routed: pl.DataFrame) -> list[str]:
    """Return sentences on pairs of GPUs with copies faster than the slowest link of their route."""
    speed = pl.col("bytes") / (pl.col("end") - pl.col("start"))
    peak = pl.col("route_bandwidth") / 1e9
    direct = routed.filter(pl.col("method") == "p2p", pl.col("end") > pl.col("start"))
    timed = direct.with_columns(speed=speed, peak=peak).drop_nulls(["speed", "peak"])
    pairs = (
        timed.group_by(_ALIKE)
        .agg(
            pl.len(), pl.col("peak").first(),
            over=(pl.col("speed") > pl.col("peak") * _OVER).sum(), fastest=pl.col("speed").max(),
        )
        .filter(pl.col("over") > 0)
        .sort(_ALIKE)
    )  # fmt: skip
    return [
        f"{row['over']:,} of {row['len']:,} copies from device {row['src_device']} to"
        f" {row['dst_device']} are faster than {row['route']} can be ({row['fastest']:.1f} GB/s of"
        f" {row['peak']:.1f} GB/s): they took another way, or the machine is another one"
        for row in pairs.to_dicts()
    ]


def _nowhere(routed: pl.DataFrame, machine: Machine) -> list[str]:
    if not machine.tells_peers:
        return []
    pairs = routed.filter(pl.col("route").is_null()).group_by("src_device", "dst_device").len()
    return [
        f"{count(number, 'copy')} went from device {src} to {dst}, between which there is no route"
        for src, dst, number in pairs.sort("src_device", "dst_device").iter_rows()
    ]


@first_line("links")
def _first_line(rows: pl.DataFrame, meta: Mapping[str, Any]) -> str | None:
    if "difference_share" in rows.columns:
        return _first_of_counters(rows)
    if "exposed_share" in rows.columns:
        return _first_of_network(rows)
    if not {"link", "src", "dst", "utilisation"} <= {*rows.columns}:
        return None
    most = largest(rows, "bytes")
    if most is None:
        return None
    share = most["utilisation"]
    peak = "assumed peak" if meta.get("origin") == "assumed" else "peak"
    full = "" if share is None else f", at {percent(share)} of its {peak} while it is busy"
    modelled = " (modelled)" if most.get("evidence") == "modelled" else ""
    text = f"{most['src']} → {most['dst']}, {size_text(most['bytes'])}{modelled}{full}"
    unknown = []
    if (lost := meta.get("transfers", 0) - meta.get("routed", 0)) > 0:
        unknown.append(f"{lost:,} of {count(meta['transfers'], 'transfer')} are on no known link")
    if lost := meta.get("collectives_of_unknown_size"):
        of_all = count(meta["collectives"], "collective kernel")
        unknown.append(f"{lost:,} of {of_all} are of unknown size")
    return "; ".join((f"Most {'of the known ' if unknown else ''}bytes: {text}", *unknown))


def _first_of_network(rows: pl.DataFrame) -> str | None:
    """Return a sentence: the NIC (or pair of hosts) with most bytes, and its utilisation."""
    ends = [name for name in ("nic", "dst_host") if name in rows.columns]
    known = rows.drop_nulls("bytes")
    if len(ends) != 1 or known.is_empty() or not {"host", "src_host"} & {*rows.columns}:
        return None
    most = known.sort("bytes", descending=True).row(0, named=True)
    if ends == ["nic"]:
        way = "sent by" if most["direction"] == "out" else "received by"
        where = f"{way} {most['nic'] or 'NICs'} of {most['host'] or 'an unnamed host'}"
    else:
        where = f"{most['src_host']} → {most['dst_host']}"
    text = f"Most across the network: {size_text(most['bytes'])}, {printable(where)}"
    full, exposed = most.get("utilisation"), most["exposed_share"]
    if full is not None:
        text += f", at {percent(full)} of its peak while it is busy"
    if exposed is not None:
        text += f"; meanwhile GPUs compute nothing for {percent(exposed)} of the time"
    return text


def _first_of_counters(rows: pl.DataFrame) -> str | None:
    """Return a sentence: the counter (of a GPU or NIC) that differs most from the traced bytes."""
    known = rows.drop_nulls("difference_bytes")
    if known.is_empty():
        return None
    size = pl.col("difference_bytes").abs()
    beyond = known.filter(pl.coalesce(pl.col("difference_share").abs() >= LEAST, size > 0))
    if beyond.is_empty():
        part = f"All {count(known.height, 'counter')}"
        if known.height < rows.height:
            part = f"{known.height:,} of {count(rows.height, 'counter')}"
        return f"{part} agree with the attributed bytes within 0.5 %"
    most = beyond.sort(size, descending=True).row(0, named=True)
    off, share = most["difference_bytes"], most["difference_share"]
    where = f"GPU {most['device']}"
    if most["device"] is None:
        where = most["nic"] or "all NICs"
        where += f" of {most['host']}" if most["host"] else ""
    part = "" if share is None else f" or {percent(abs(share))}"
    than = f"{size_text(abs(off))}{part} {'more' if off > 0 else 'less'} than counted"
    counter = f"{printable(where)}, {most['metric']}"
    return f"Largest difference beyond 0.5 %: {counter}: {than} is attributed"


@summary(
    "machine",
    "origin",
    "placed_by",
    "transfers",
    "routed",
    "sized",
    "collectives",
    "collectives_of_unknown_size",
    "collectives_on_no_link",
    "root",
    optional=["listed"],  # of counters there are none
)
def _traffic_notes(meta: Mapping[str, Any]) -> list[str]:
    """Return notes: the machine, the share of transfers with a known route, and the root GPU."""
    machine, origin = text_of(meta["machine"]), text_of(meta["origin"])
    lines = [f"machine {machine} ({origin}), GPUs taken by {text_of(meta['placed_by'])}"]
    transfers = meta["transfers"]
    text = f"{part_text(meta['routed'], transfers)} on known links"
    listed = meta.get("listed", transfers)
    rows = "" if listed == transfers else f"{listed:,} of them in these rows, "
    sized = f"{part_text(meta['sized'], transfers)} sized"
    sentence = f"{count(transfers, 'transfer')}, {rows}{text}, {sized}"
    none = "no transfers between devices, or with the host, are known"
    lines.append(sentence if transfers else none)
    if meta["collectives"]:
        known = meta["collectives"] - meta["collectives_of_unknown_size"]
        sized = part_text(known, meta["collectives"])
        lines.append(f"{count(meta['collectives'], 'collective kernel')}, {sized} of known size")
    root = meta["root"]
    if root["pattern"] == "single":
        share = percent(root["share"])
        lines.append(f"root of the traffic: GPU {root['root']}, an end of {share} of bytes copied")
    elif root["pattern"] == "spread":
        lines.append("no root of the traffic: copies are spread over GPUs")
    return lines


@note("expected")
def _expected_notes(found: Mapping[str, Any]) -> list[str]:
    if found["gpus"] < 2:  # noqa: PLR2004
        return ["bytes between GPUs in each iteration: none are known, so none are expected"]
    sizes = {
        name: size_text(found[f"{name}_bytes"]) for name in ("gradient", "expected", "observed")
    }
    if "least_bytes" in found:
        sizes["observed"] = f"{size_text(found['least_bytes'])} to {size_text(found['most_bytes'])}"
    ratio = "" if found["ratio"] is None else f" ({found['ratio']:.3g} of the expected bytes)"
    how = "by a model" if found["evidence"] == "modelled" else "observed"
    unsized = f", {count(found['unsized'], 'transfer')} not sized" if found["unsized"] else ""
    text = f"bytes between GPUs in each iteration: {sizes['observed']} {how}{ratio}{unsized}"
    if found["expected_bytes"] is None:
        return [f"{text}; most are not shown to be gradients of all GPUs, so none are expected"]
    why = f"2 (n - 1) S for n = {found['gpus']} GPUs and gradients of S = {sizes['gradient']}"
    return [f"{text}, {sizes['expected']} expected: {why}, 4 bytes a parameter"]
