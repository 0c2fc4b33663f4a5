"""Sweeps over a graph of moments: their order, when each can be, and what each waited for.

A graph is arrays: the edges that lead into moment m are those from ``first[m]`` to ``first[m + 1]``
of ``source`` and what goes with it. An edge says that its moment comes no earlier than its source
and a length.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

LATEST = 1 << 62
"""When a moment may be that nothing waits for."""


def put_in_order(into: Array, out: tuple[Array, Array], missing: Array, order: Array) -> int:
    """Put moments in an order in which each comes after the sources of its edges.

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
    """Find when each moment comes: a length after the last of those that it waits for.

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
    """Follow each end back to what it waited for, until its step had not begun.

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
    """Find how late each moment may come so that none comes later than allowed.

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
