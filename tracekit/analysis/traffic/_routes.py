"""Routes of transfers over links."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from tracekit.machine import Machine, Route
from tracekit.model import PolarsType

_ENDS = (
    "src_device", "dst_device", "via_device", "through_host", "at_switch", "is_known", "src_nic",
    "dst_nic",
)  # fmt: skip
_OF_ENDS = (
    "src_device", "dst_device", "via_device", "at_switch", "src_nic", "dst_nic", "first_end",
    "second_start", "source",
)  # fmt: skip
_TO_HOST = ("h2d", "d2h", "mpi")
"""Methods for which an end without a GPU is host memory; for all others that end is unknown."""
_ROUTE = {"route": pl.String, "route_type": pl.String, "route_bandwidth": pl.Int64}
_HOP = {
    "link": pl.String, "src": pl.String, "dst": pl.String, "type": pl.String, "nvlinks": pl.Int64,
    "bandwidth": pl.Int64, "leg": pl.Int8,
}  # fmt: skip
_FIRST_LEG, _BOTH_LEGS, _SECOND_LEG = 1, 0, 2


class Routes:
    """Routes of transfers over a machine, each pair of end points looked up once.

    Parameters
    ----------
    place
        Device of the run -> GPU of the machine.
    """

    def __init__(self, machine: Machine, place: Mapping[int, int]) -> None:
        self.machine, self.place = machine, place
        self._rows: dict[str, pl.DataFrame] = {}
        self._ends: dict[str, pl.DataFrame] = {}

    def of(self, transfers: pl.DataFrame) -> pl.DataFrame:
        """Add ``route``, ``route_type`` and ``route_bandwidth`` (bytes/s) to transfers.

        `transfers` has a row per movement of data.

        Returns
        -------
        All transfers; the added columns are null if the route is unknown.
        """
        marked = _marked(transfers)
        found = self._looked_up("route", marked, _described, _ROUTE)
        joined = marked.join(found, on=_ENDS, how="left", nulls_equal=True, maintain_order="left")
        return joined.drop("through_host", "is_known")

    def crossings(self, transfers: pl.DataFrame, *, is_short: bool = False) -> pl.DataFrame:
        """Return a row per transfer and link that it crosses.

        Parameters
        ----------
        transfers
            One row per movement of data, as in the table `TRANSFERS`.
        is_short
            Whether to leave out columns that only serve to find links and times, and return texts
            of links as categories, which takes half the memory.

        Returns
        -------
        The columns of `transfers`, with ``start`` (ns) and ``end`` of the copy that crosses this
        link; and ``link, src, dst, type, nvlinks, bandwidth``: the link, its end nodes in the
        direction of the transfer, its type, number of bundled links (bricks), and peak per
        direction in bytes/s.
        """
        marked = _marked(transfers)
        found = self._looked_up("hop", marked, _hops, _HOP)
        if is_short:
            found = found.with_columns(pl.col(pl.String).cast(pl.Categorical))
        crossed = marked.lazy().join(found.lazy(), on=_ENDS, how="inner", nulls_equal=True)
        first, second = pl.col("leg") == _FIRST_LEG, pl.col("leg") == _SECOND_LEG
        timed = crossed.with_columns(
            end=pl.when(first).then(pl.coalesce("first_end", "end")).otherwise("end"),
            start=pl.when(second).then(pl.coalesce("second_start", "start")).otherwise("start"),
        )
        less = _OF_ENDS if is_short else ()
        return timed.drop("leg", "through_host", "is_known", *less).collect()

    def _looked_up(
        self,
        what: str,
        marked: pl.DataFrame,
        rows_of: Callable[[list[Route]], Iterable[tuple[Any, ...]]],
        columns: Mapping[str, PolarsType],
    ) -> pl.DataFrame:
        """Return a cached table of rows (`columns`) by pair of end points; `what` names the table.

        Pairs in `marked` that are new are looked up, and `rows_of` makes rows of their routes.
        """
        types = {name: marked.schema[name] for name in _ENDS}
        known = self._ends.get(what, pl.DataFrame(schema=types))
        ends = marked.filter("is_known").select(_ENDS).unique(maintain_order=True)
        fresh = ends.join(known, on=_ENDS, how="anti", nulls_equal=True, maintain_order="left")
        schema = {**types, **columns}
        rows = [
            (*each, *row)
            for each, routes in _routes(fresh, self.machine, self.place)
            for row in rows_of(routes)
        ]
        made = pl.DataFrame(rows, schema=schema, orient="row")
        self._ends[what] = pl.concat([known, fresh])
        self._rows[what] = pl.concat([self._rows.get(what, made.clear()), made])
        return self._rows[what]


def crossings(transfers: pl.DataFrame, machine: Machine, place: Mapping[int, int]) -> pl.DataFrame:
    """Return a row per transfer and link that it crosses; see `Routes.crossings`."""
    return Routes(machine, place).crossings(transfers)


def _marked(transfers: pl.DataFrame) -> pl.DataFrame:
    ended = pl.all_horizontal(pl.col("src_device", "dst_device").is_not_null())
    return transfers.with_columns(
        through_host=pl.col("method") == "staged",
        at_switch=pl.col("at_switch").fill_null(value=False),
        is_known=ended
        | pl.col("method").is_in(_TO_HOST)
        | pl.col("at_switch").fill_null(value=False),
    )


def _routes(
    all_ends: pl.DataFrame, machine: Machine, place: Mapping[int, int]
) -> Iterator[tuple[tuple[Any, ...], list[Route]]]:
    """Yield each pair of end points with a known route, and the route of each of its copies."""
    for ends in all_ends.rows():
        src, dst, via, through_host, at_switch, _, *nics = ends
        stops = [src, dst] if via is None else [src, via, dst]
        if any(stop is not None and stop not in place for stop in stops):
            continue
        gpus = [None if stop is None else place[stop] for stop in stops]
        legs = [
            machine.switch_route(*leg)
            if at_switch
            else machine.route(*leg, through_host=through_host, nics=(nics[0], nics[1]))
            for leg in itertools.pairwise(gpus)
        ]
        routes = [leg for leg in legs if leg is not None]
        if len(routes) == len(legs):
            yield ends, routes


def _described(routes: list[Route]) -> Iterator[tuple[str, str, int | None]]:
    nodes = [*routes[0].nodes, *(node for route in routes[1:] for node in route.nodes[1:])]
    links = tuple(link for route in routes for link in route.links)
    joined = Route(tuple(nodes), links)
    yield joined.name, joined.type, joined.bandwidth


def _hops(routes: list[Route]) -> Iterator[tuple[Any, ...]]:
    for number, route in enumerate(routes):
        steps = list(itertools.pairwise(route.nodes))
        for (src, dst), link, leg in zip(steps, route.links, _legs(route), strict=True):
            leg_number = leg if len(routes) == 1 else (_FIRST_LEG, _SECOND_LEG)[number]
            yield link.name, src, dst, link.type, link.bricks, link.bandwidth, leg_number


def _legs(route: Route) -> list[int]:
    """Return, for each link of a staged transfer's route, the index of the copy that crosses it.

    The first copy goes to host memory, the second copy from there. The CPU to which that memory
    belongs is unknown, so links between CPUs may be crossed by either copy.
    """
    hosts = [number for number, node in enumerate(route.nodes) if node.startswith("CPU")]
    if not hosts or hosts[0] == 0 or hosts[-1] == len(route.nodes) - 1:
        return [_BOTH_LEGS] * len(route.links)
    return [
        _FIRST_LEG if number < hosts[0] else _SECOND_LEG if number >= hosts[-1] else _BOTH_LEGS
        for number in range(len(route.links))
    ]
