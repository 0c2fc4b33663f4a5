"""Compiled loops over a dependency graph: topological order, earliest and latest times, paths.

Its nodes, the starts and ends of calls and ops, are called moments. The graph is stored in arrays:
the edges into node m are entries ``first[m]`` to ``first[m + 1]`` of ``source``, ``length`` and so
on. The target of an edge comes no earlier than its source plus its length.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from numpy.typing import NDArray

from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]

LATEST = 1 << 62
"""Latest time of a node that no other one waits for."""


KINDS = (
    "host", "call", "handover", "loader", "wait", "pace", "launch", "queue", "stream", "event",
    "order", "work", "transfer", "return", "block",
)  # fmt: skip
"""Kinds of edges (why a moment comes no earlier than another): see ``docs/critical-path.md``."""
FITTED = ("launch", "queue", "stream", "event", "order", "return", "block")
"""Kinds whose length is not recorded: it is that of most edges of the kind."""
WORKS = ("compute", "memory", "comm", "host_copy")
"""Kinds of work of an op."""
SIZE = 1 + len(FITTED) * (len(WORKS) + 1)
"""Number of groups of edges: those of recorded length, and each fitted kind by work of its op."""
_GROUPS = tuple(
    1 + FITTED.index(kind) * (len(WORKS) + 1) if kind in FITTED else 0 for kind in KINDS
)
_HOST, _CALL, _LAUNCH, _STREAM, _WORK, _RETURN, _BLOCK, _QUEUE = map(
    KINDS.index, ("host", "call", "launch", "stream", "work", "return", "block", "queue")
)
NONE = -(1 << 62)
"""In `Net`: no edge."""
NO_NODE = (1 << 32) - 1
"""In place of a node, where an op's launch was not recorded, or a node waits for nothing."""
OWN_NS = 10_000
"""Longest own time of a waiting call, ns."""
NEAR = 6
"""Further edges are found by the number of their target without that many bits."""
_SOURCE, _KIND, _GROUP, _LENGTH = range(4)


class Net(NamedTuple):
    """A dependency graph that stores no edges along threads and streams: node numbers imply them.

    Nodes come in pairs, start and end of a call or op: first all calls, by thread and time, then
    all ops, by stream and time.
    """

    time: Array
    """Recorded time of each node, ns."""
    host: Array
    """Of each call, length of the edge from the call of its thread before it, or `NONE`."""
    launch: Array
    """Of each op, the node at which its launching call begins, or `NO_NODE`."""
    follows: Array
    """Of each op, whether it is on the stream of the op before it."""
    alone: Array
    """Of each op, whether its end waits only for its begin."""
    work: Array
    """Of each op, what it does, as a number from 1."""
    near: Array
    """Positions of the first further edge into each 64 nodes."""
    further: tuple[Array, Array, Array, Array]
    """``target, source, kind, length`` of all other edges, sorted by target."""


@inner
def _put(net: Net, node: int, edge: tuple[int, int, int], count: int, found: Array) -> int:
    """Append an edge (``source, kind, length`` (ns)) to `found`; return the new `count` of edges.

    An edge whose source was recorded after its target is left out.
    """
    source, kind, length = edge
    if net.time[source] > net.time[node]:
        return count
    group = _GROUPS[kind]
    if group:
        calls = len(net.host)
        if node >= 2 * calls and node % 2 == 0:
            group += net.work[node // 2 - calls]
        elif source >= 2 * calls and source % 2 == 1:
            group += net.work[source // 2 - calls]
    found[_SOURCE, count], found[_KIND, count] = source, kind
    found[_GROUP, count], found[_LENGTH, count] = group, length
    return count + 1


@inner
def edges_into(net: Net, node: int, found: Array) -> int:
    """List edges into a node in `found`: ``source, kind, group, length`` (ns); return how many."""
    calls, row, ends = len(net.host), node // 2, node % 2 == 1
    is_call, count, waits = row < calls, 0, False
    if is_call and not ends and net.host[row] != NONE:
        count = _put(net, node, (node - 1, _HOST, net.host[row]), count, found)
    if not is_call and ends and net.alone[row - calls]:
        took = net.time[node] - net.time[node - 1]
        count = _put(net, node, (node - 1, _WORK, took), count, found)
    if not is_call and not ends:
        if net.launch[row - calls] != NO_NODE:
            count = _put(net, node, (net.launch[row - calls], _LAUNCH, 0), count, found)
        if net.follows[row - calls]:
            count = _put(net, node, (node - 1, _STREAM, 0), count, found)
    target, source, kind, length = net.further
    place = net.near[node >> NEAR]
    while place < len(target) and target[place] < node:
        place += 1
    while place < len(target) and target[place] == node:
        waits = waits or kind[place] in (_RETURN, _BLOCK, _QUEUE)
        edge = source[place], kind[place], length[place]
        count = _put(net, node, edge, count, found)
        place += 1
    if is_call and ends:
        took = net.time[node] - net.time[node - 1]
        edge = node - 1, _CALL, min(took, OWN_NS) if waits else took
        count = _put(net, node, edge, count, found)
    return count


@inner
def _choose(net: Net, node: int, usual: Array, found: Array, count: int) -> int:
    """Set in `found` the length of each edge; return the edge that delays the node most, or -1.

    That edge has the latest time of source plus length (of several, the first one). The length is
    `usual` of the edge's group if it has a group, else the recorded length, but at most the time
    from source to target.
    """
    chosen, least = -1, 0
    for edge in range(count):
        lag = net.time[node] - net.time[found[_SOURCE, edge]]
        group = found[_GROUP, edge]
        own = usual[group] if group else min(found[_LENGTH, edge], lag)
        found[_LENGTH, edge] = own
        if own >= 0 and (chosen < 0 or lag - own < least):
            chosen, least = edge, lag - own
    return chosen


def sum_lags(
    net: Net, usual: Array, holding: tuple[Array, Array], tolerated: int, found: Array
) -> int:
    """Add the lags of binding edges to `holding`, by group; return the number of all edges.

    The lag of an edge is the time of its target minus that of its source. An edge is binding if no
    other edge into its target has a later (time of source + length).

    Parameters
    ----------
    usual
        Current length of the edges of each group, ns. Edges of group 0 have recorded lengths.
    holding
        Sum and number of the lags of binding edges, by group: updated.
    tolerated
        Largest lag that counts, ns.
    found
        Working space for the edges into a node.
    """
    lags, counts = holding
    number = 0
    for node in range(len(net.time)):
        count = edges_into(net, node, found)
        number += count
        chosen = _choose(net, node, usual, found, count)
        if chosen < 0:
            continue
        bound = net.time[found[_SOURCE, chosen]] + found[_LENGTH, chosen]
        for edge in range(count):
            group, source = found[_GROUP, edge], net.time[found[_SOURCE, edge]]
            lag = net.time[node] - source
            if group and lag <= tolerated and source + found[_LENGTH, edge] == bound:
                lags[group] += lag
                counts[group] += 1
    return number


def list_edges(
    net: Net, usual: Array, found: Array, rows: tuple[Array, Array, Array, Array], late: Array
) -> None:
    """List all edges: ``source, target, kind, length``, by target; fill in delays of nodes, ns.

    A node's delay is the recorded time that the edges into it do not explain.
    """
    source, target, kind, length = rows
    row = 0
    for node in range(len(net.time)):
        count = edges_into(net, node, found)
        chosen = _choose(net, node, usual, found, count)
        late[node] = 0
        if chosen >= 0:
            bound = net.time[found[_SOURCE, chosen]] + found[_LENGTH, chosen]
            late[node] = net.time[node] - bound
        for edge in range(count):
            source[row], target[row] = found[_SOURCE, edge], node
            kind[row], length[row] = found[_KIND, edge], found[_LENGTH, edge]
            row += 1


def list_instant(net: Net, found: Array, source: Array, target: Array) -> int:
    """Write edges between nodes of equal time to `source` and `target`; return their number.

    If the arrays are too short (they may be empty), the remaining edges are only counted.
    """
    row = 0
    for node in range(len(net.time)):
        for edge in range(edges_into(net, node, found)):
            if net.time[found[_SOURCE, edge]] == net.time[node]:
                if row < len(source):
                    source[row], target[row] = found[_SOURCE, edge], node
                row += 1
    return row


def follow_back(
    net: Net,
    usual: Array,
    ends: tuple[Array, Array],
    found: Array,
    at: Array,
    path: tuple[Array, ...],
) -> int:
    """Follow the critical path of each step back, from its end to its start, at recorded times.

    Of several edges into a node the edge with the latest source plus length is followed.

    Parameters
    ----------
    net, usual
        As for `sum_lags`.
    ends
        ``node, since``: the node that ends each path, and the time at which its step starts.
    found
        Working space for the edges into a node.
    at
        Where to continue: index of the step, and the node (-1: the end of the step). Updated, so
        that the next call goes on from there.
    path
        ``target, kind, step, start, end, explained`` of segments, from the end of a step backwards.
        `explained` is the part of a segment that the length of its edge explains, ns. For a segment
        that ends at a node without edges into it, `target` is `NO_NODE`.

    Returns
    -------
    Number of segments written. If it is below the length of the arrays `path`, all steps are done;
    else call again.
    """
    last, since = ends
    target, kind, step, start, end, explained = path
    count = 0
    while at[0] < len(last) and count < len(target):
        number = at[0]
        node = last[number] if at[1] < 0 else at[1]
        begun, time = since[number], net.time[node]
        if time <= begun:
            at[0], at[1] = number + 1, -1
            continue
        chosen = _choose(net, node, usual, found, edges_into(net, node, found))
        step[count], start[count], end[count] = number, begun, time
        if chosen < 0:
            target[count], kind[count], explained[count] = NO_NODE, 0, 0
            at[0], at[1] = number + 1, -1
        else:
            source = found[_SOURCE, chosen]
            start[count] = max(begun, net.time[source])
            target[count], kind[count] = node, found[_KIND, chosen]
            explained[count] = min(found[_LENGTH, chosen], time - start[count])
            at[1] = source
        count += 1
    return count


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
    order: Array, into: tuple[Array, Array, Array], delays: Array, time: Array
) -> None:  # fmt: skip
    """Compute each node's earliest time: the largest (time of source + length) over its edges.

    Parameters
    ----------
    order
        The nodes in the order of `put_in_order`.
    into
        ``first, source, length`` of the edges into each node; edges of negative length hold
        nothing back.
    delays
        Delay added at each node, ns.
    time
        Time of each node, ns: filled in, except for nodes without edges into them, which keep their
        times.
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
        time[moment] = begun + delays[moment] if known else begun


def late_on_paths(ends: tuple[Array, Array], into: tuple[Array, Array, Array], time: Array) -> int:
    """Return the total time on critical paths, ns, by which nodes come later than edges require.

    Each step has one path, from its end back to its start. Of the edges into a node, it follows the
    one for which (time of source + length) is latest.

    Parameters
    ----------
    ends
        As for `follow_back`.
    into
        As for `replay`.
    time
        Time of each node, ns.
    """
    last, since = ends
    first, source, length = into
    late = 0
    for number in range(len(last)):
        node = last[number]
        while time[node] > since[number]:
            chosen = -1
            for edge in range(first[node], first[node + 1]):
                if length[edge] < 0:
                    continue
                ready = time[source[edge]] + length[edge]
                if chosen < 0 or ready > time[source[chosen]] + length[chosen]:
                    chosen = edge
            if chosen < 0:
                late += time[node] - since[number]
                break
            begun = max(since[number], time[source[chosen]])
            late += max(0, time[node] - begun - length[chosen])
            node = source[chosen]
    return late


def latest(order: Array, into: tuple[Array, Array, Array], delays: Array, allowed: Array) -> None:
    """Compute how late each node may come without delaying the end of any step.

    Parameters
    ----------
    order, into, delays
        As for `replay`.
    allowed
        Latest time of each node, ns. On entry it is known for ends of steps, and `LATEST` for other
        nodes; the function fills in the nodes that an end of a step depends on.
    """
    first, source, length = into
    for place in range(len(order) - 1, -1, -1):
        moment = order[place]
        if allowed[moment] == LATEST:
            continue
        begun = allowed[moment] - delays[moment]
        for edge in range(first[moment], first[moment + 1]):
            if length[edge] >= 0:
                before = source[edge]
                allowed[before] = min(allowed[before], begun - length[edge])
