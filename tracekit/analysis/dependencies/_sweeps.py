"""Compiled loops over a dependency graph: topological order, earliest and latest times, paths.

Its nodes, the starts and ends of calls and ops, are called moments. The graph is stored in arrays:
the edges into node m are entries ``first[m]`` to ``first[m + 1]`` of ``source``, ``length`` and so
on. The target of an edge comes no earlier than its source plus its length.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

LATEST = 1 << 62
"""Latest time of a node that no other one waits for."""


class Lengths(NamedTuple):
    """Lengths of edges, and delays of nodes beyond what their edges require."""

    weight: Array
    """Least time from the source to the target of each edge, ns."""
    late: Array
    """Delay of each moment beyond what its edges explain, ns."""


def find_lengths(
    time: Array, into: tuple[Array, Array, Array], groups: Array, usual: Array,
    found: Lengths, holding: tuple[Array, Array], tolerated: int,
) -> None:  # fmt: skip
    """Set each edge's length; per group, sum lags (target - source) of edges that bind a node.

    Parameters
    ----------
    time
        Time of each node, ns.
    into
        ``first, source, length`` of the edges into each node, as far as lengths were recorded;
        edges of negative length delay nothing.
    groups
        Group of each edge, by number; 0 for edges of recorded length.
    usual
        Current length of the edges of each group, ns.
    found
        Filled in: lengths of edges, and unexplained delays of nodes.
    holding
        By group, sum and number of lags of binding edges (latest source plus length); updated.
    tolerated
        Largest lag that counts, ns.
    """
    first, source, length = into
    lags, counts = holding
    for moment in range(len(time)):
        begin, end = first[moment], first[moment + 1]
        least, known = 0, False
        for edge in range(begin, end):
            lag = time[moment] - time[source[edge]]
            weight = usual[groups[edge]] if groups[edge] else min(length[edge], lag)
            found.weight[edge] = weight
            if weight >= 0 and (not known or lag - weight < least):
                least, known = lag - weight, True
        found.late[moment] = least
        for edge in range(begin, end):
            lag = time[moment] - time[source[edge]]
            if groups[edge] and lag <= tolerated and lag - found.weight[edge] == least:
                lags[groups[edge]] += lag
                counts[groups[edge]] += 1


def lead_out(source: Array, target: Array, free: Array, later: Array) -> None:
    """Sort edges by source: fill in the targets of each source one after the other.

    Parameters
    ----------
    source, target
        The edges.
    free
        Next free position in `later` for each source node; updated.
    later
        Filled with the targets.
    """
    for edge in range(len(source)):
        moment = source[edge]
        later[free[moment]] = target[edge]
        free[moment] += 1


def put_in_order(into: Array, out: tuple[Array, Array], missing: Array, order: Array) -> int:
    """Sort nodes topologically: each after the sources of its edges.

    Parameters
    ----------
    into
        ``first`` of the edges into each node.
    out
        ``first, target``: the same edges by the node that they lead out of.
    missing
        Working space of an integer per node.
    order
        The nodes, filled in.

    Returns
    -------
    Number of nodes in the order: fewer than all if the graph has a cycle.
    """
    first, target = out
    placed = 0
    for moment in range(len(missing)):
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
    """Compute each node's earliest time: the largest (time of source + length) over its edges.

    Parameters
    ----------
    order
        The nodes in the order of `put_in_order`.
    into
        ``first, source, length`` of the edges into each node; edges of negative length hold
        nothing back.
    carried
        Delay added at each node, ns.
    time
        Time of each node, ns: filled in, except for nodes without edges into them, which keep
        theirs.
    """
    first, source, length = into
    for place in range(len(order)):
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
    """Follow the critical path of each step back, from its end node to its start.

    Of several edges into a node the edge with the latest source plus length is followed.

    Parameters
    ----------
    ends
        ``moment, since``: the node that ends each path, and the time at which its step starts.
    into
        As for `replay`.
    time
        Time of each node, ns.
    path
        Filled in, two rows: followed edges, and the index of their step in `ends`; last edge first.

    Returns
    -------
    Number of edges that were followed.
    """
    last, since = ends
    first, source, length = into
    count = 0
    for number in range(len(last)):
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
    """Compute the latest time at which each node could come without delaying any end of a step.

    Parameters
    ----------
    order, into, carried
        As for `replay`.
    allowed
        Latest time of each node, ns: on entry that of ends of steps, and `LATEST` for all others;
        filled in for the nodes that an end depends on.
    """
    first, source, length = into
    for place in range(len(order) - 1, -1, -1):
        moment = order[place]
        if allowed[moment] == LATEST:
            continue
        begun = allowed[moment] - carried[moment]
        for edge in range(first[moment], first[moment + 1]):
            if length[edge] >= 0:
                before = source[edge]
                allowed[before] = min(allowed[before], begun - length[edge])
