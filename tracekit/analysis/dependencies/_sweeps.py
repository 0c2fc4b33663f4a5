"""Sweeps over a graph of moments: topological order, earliest and latest times, paths.

A graph is arrays: the edges that lead into moment m are those from ``first[m]`` to ``first[m + 1]``
of ``source`` and what goes with it. An edge says that its moment comes no earlier than its source
and a length.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

LATEST = 1 << 62
"""When a moment may be that nothing waits for."""


class Lengths(NamedTuple):
    """Lengths of edges, and times of moments."""

    weight: Array
    """How long the target of each edge comes after its source at least."""
    late: Array
    """How much later each moment came than any of its edges explains."""


def find_lengths(
    time: Array, into: tuple[Array, Array, Array], groups: Array, usual: Array,
    found: Lengths, holding: tuple[Array, Array], tolerated: int,
) -> None:  # fmt: skip
    """Find how long edges are, and how long those of each group are that held their moment last.

    Parameters
    ----------
    time
        When each moment came.
    into
        ``first, source, length`` of the edges into each moment, as far as lengths were recorded; of
        a negative one are such as hold nothing back.
    groups
        The group of each edge; 0 of those whose length was recorded.
    usual
        How long those of each group are.
    found
        Filled in.
    holding
        What their lags add up to, and how many there are, by group; added to.
    tolerated
        Longer lags are not counted.
    """
    first, source, length = into
    lags, counts = holding
    for moment in range(time.size):
        begin, end = first[moment], first[moment + 1]
        least, known = 0, False
        for edge in range(begin, end):
            lag = time[moment] - time[source[edge]]
            own = usual[groups[edge]] if groups[edge] else min(length[edge], lag)
            found.weight[edge] = own
            if own >= 0 and (not known or lag - own < least):
                least, known = lag - own, True
        found.late[moment] = least
        for edge in range(begin, end):
            lag = time[moment] - time[source[edge]]
            if groups[edge] and lag <= tolerated and lag - found.weight[edge] == least:
                lags[groups[edge]] += lag
                counts[groups[edge]] += 1


def lead_out(source: Array, target: Array, free: Array, later: Array) -> None:
    """Put the targets of edges together by their source.

    Parameters
    ----------
    source, target
        The edges.
    free
        Where the next target of each moment goes; updated.
    later
        Becomes the targets.
    """
    for edge in range(source.size):
        moment = source[edge]
        later[free[moment]] = target[edge]
        free[moment] += 1


def put_in_order(into: Array, out: tuple[Array, Array], missing: Array, order: Array) -> int:
    """Sort moments topologically: each after the sources of its edges.

    Parameters
    ----------
    into
        ``first`` of the edges into each moment.
    out
        ``first, target``: the same edges by the moment that they lead out of.
    missing
        Room for a number per moment.
    order
        The moments, filled in.

    Returns
    -------
    How many moments have a place: fewer than all if some wait for each other in a circle.
    """
    first, target = out
    placed = 0
    for moment in range(missing.size):
        missing[moment] = into[moment + 1] - into[moment]
        if missing[moment] == 0:
            order[placed] = moment
            placed += 1
    done = 0
    while done < placed:
        moment = order[done]
        done += 1
        for edge in range(first[moment], first[moment + 1]):
            later = target[edge]
            missing[later] -= 1
            if missing[later] == 0:
                order[placed] = later
                placed += 1
    return placed


def replay(
    order: Array, into: tuple[Array, Array, Array], carried: Array, time: Array
) -> None:  # fmt: skip
    """Compute the earliest time of each moment: its last predecessor plus a length.

    Parameters
    ----------
    order
        The moments, as `put_in_order` orders them.
    into
        ``first, source, length`` of the edges into each moment; of a negative length are such as
        hold nothing back.
    carried
        What is added at each moment.
    time
        When each moment comes, filled in; of those that wait for nothing it is given.
    """
    first, source, length = into
    for place in range(order.size):
        moment = order[place]
        begun, known = time[moment], False
        for edge in range(first[moment], first[moment + 1]):
            if length[edge] < 0:
                continue
            ready = time[source[edge]] + length[edge]
            if not known or ready > begun:
                begun, known = ready, True
        time[moment] = begun + carried[moment] if known else begun


def walk_back(
    ends: tuple[Array, Array], into: tuple[Array, Array, Array], time: Array, path: Array
) -> int:
    """Follow each end back along the predecessor that held it, to the begin of its step.

    Of several edges the one is followed over which its moment could come last.

    Parameters
    ----------
    ends
        ``moment, since``: where each path ends, and when its step begins.
    into
        As for `replay`.
    time
        When each moment came.
    path
        Filled in: ``edge, number of the end`` in two rows, the last edge of each path first.

    Returns
    -------
    How many edges were followed.
    """
    last, since = ends
    first, source, length = into
    count = 0
    for number in range(last.size):
        moment = last[number]
        while time[moment] > since[number]:
            chosen = -1
            for edge in range(first[moment], first[moment + 1]):
                if length[edge] < 0:
                    continue
                ready = time[source[edge]] + length[edge]
                if chosen < 0 or ready > time[source[chosen]] + length[chosen]:
                    chosen = edge
            if chosen < 0:
                break
            path[0, count], path[1, count] = chosen, number
            count += 1
            moment = source[chosen]
    return count


def latest(order: Array, into: tuple[Array, Array, Array], carried: Array, allowed: Array) -> None:
    """Compute the latest time of each moment that delays no end.

    Parameters
    ----------
    order, into, carried
        As for `replay`.
    allowed
        How late each moment may come: given for those that end steps, `LATEST` for all others;
        filled in for what these wait for.
    """
    first, source, length = into
    for place in range(order.size - 1, -1, -1):
        moment = order[place]
        if allowed[moment] == LATEST:
            continue
        begun = allowed[moment] - carried[moment]
        for edge in range(first[moment], first[moment + 1]):
            if length[edge] >= 0:
                before = source[edge]
                allowed[before] = min(allowed[before], begun - length[edge])
