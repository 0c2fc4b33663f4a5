"""The loops over trees: of ranges, and of their paths.

A tree is a column of parents, -1 where there is none. Where nodes are laid out, those below a node
follow it without a gap: node `a` holds those from `a` to `a + sizes[a] - 1`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]


def lay_out(sequence: Array, parents: Array, sizes: Array, free: Array, places: Array) -> None:
    """Give each node of a tree its place, so that each subtree is contiguous.

    Parameters
    ----------
    sequence
        All nodes, each after its parent; those of one parent come to lie in this order.
    parents
        The parent of each node.
    sizes
        Ones; becomes how many nodes are at and below each.
    free
        Zeros, one more than there are nodes: where the next one below each node goes, and last the
        next one below none.
    places
        Becomes the place of each node.
    """
    for turn in range(sequence.size - 1, -1, -1):
        node = sequence[turn]
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    for node in sequence:
        parent = parents[node]
        places[node] = free[parent]
        free[parent] += sizes[node]
        free[node] = places[node] + 1


def find_shortcuts(parents: Array, depths: Array, shortcuts: Array) -> None:
    """Find how deep nodes are, and for each one far above it, so that all above is a few steps off.

    A shortcut is as long as the two after it together where these are of one length, else one step:
    then any node above is reached in steps that grow with the logarithm of the depth.
    """
    for node in range(parents.size):
        parent = parents[node]
        depths[node] = depths[parent] + 1 if parent >= 0 else 0
        shortcuts[node] = parent
        if parent >= 0 and shortcuts[parent] >= 0:
            middle = shortcuts[parent]
            far = shortcuts[middle]
            top = depths[far] if far >= 0 else -1
            if depths[parent] - depths[middle] == depths[middle] - top:
                shortcuts[node] = far


@inner
def meeting(low: int, high: int, parents: Array, shortcuts: Array, sizes: Array) -> int:
    """Return the nearest common ancestor of two nodes, `low` laid out first; -1 if none."""
    node = high
    while node >= 0 and not node <= low < node + sizes[node]:
        far = shortcuts[node]
        beyond = far >= 0 and far <= low < far + sizes[far]
        node = parents[node] if far < 0 or beyond else far
    return node


@inner
def part(
    place: int, now: int, active: tuple[Array, ...], tree: tuple[Array, ...], twice: Array
) -> None:
    """Count the time for which the one at a place ran beside the one before it."""
    nodes, _, since = active
    node = meeting(nodes[place - 1], nodes[place], *tree)
    if node >= 0:
        twice[node] += now - since[place]


@inner
def leave(
    size: int, place: int, active: tuple[Array, ...], tree: tuple[Array, ...], twice: Array
) -> None:
    """Remove one of the `size` that run."""
    nodes, ends, since = active
    now = ends[place]
    if place > 0:
        part(place, now, active, tree, twice)
    if place + 1 < size:
        part(place + 1, now, active, tree, twice)
    for after in range(place + 1, size):
        nodes[after - 1], ends[after - 1] = nodes[after], ends[after]
        since[after - 1] = since[after]
    if place > 0 and place + 1 < size:
        since[place] = now


@inner
def first_to_end(size: int, ends: Array) -> int:
    """Return the one that ends first of those that run."""
    first = 0
    for place in range(1, size):
        if ends[place] < ends[first]:
            first = place
    return first


def count_twice(
    intervals: tuple[Array, ...],
    tree: tuple[Array, ...],
    active: tuple[Array, ...],
    twice: Array,
) -> None:
    """Find how much time a sum of lengths counts more than once, and where.

    At any time some nodes run. The nodes that hold one of them are the ways up from these, and two
    ways are one from where they meet. So, in the order in which nodes are laid out, each that runs
    adds its way, and each pair of neighbours takes off the way from where they meet. The length of
    the union below a node is then the sum of lengths there less what is found there.

    Parameters
    ----------
    intervals
        ``start, end, node`` by start.
    tree
        ``parents, shortcuts, sizes`` of nodes that are laid out.
    active
        Room for all that may run at once: ``node, end, since``, the last being since when it runs
        beside the one before it.
    twice
        Zeros; becomes the time that is counted twice at each node.
    """
    starts, ends, where = intervals
    nodes, until, since = active
    size = 0
    for row in range(starts.size + 1):
        while size > 0:
            first = first_to_end(size, until)
            if row < starts.size and until[first] > starts[row]:
                break
            leave(size, first, active, tree, twice)
            size -= 1
        if row == starts.size:
            break
        now, place = starts[row], size
        while place > 0 and nodes[place - 1] > where[row]:
            place -= 1
        if 0 < place < size:
            part(place, now, active, tree, twice)
        for after in range(size, place, -1):
            nodes[after], until[after] = nodes[after - 1], until[after - 1]
            since[after] = since[after - 1]
        nodes[place], until[place], since[place] = where[row], ends[row], now
        if place < size:
            since[place + 1] = now
        size += 1


def carry_up(parents: Array, sums: Array, first: Array, last: Array) -> None:
    """Add to each range the work launched in nested ranges: amount, begin and end.

    Parameters
    ----------
    parents
        The row of the range around each, -1 where there is none; it comes before what is in it.
    sums
        A row for each range of what is added up.
    first, last
        When the first op of each starts and the last one ends; the other way round without any.
    """
    for row in range(parents.size - 1, -1, -1):
        parent = parents[row]
        if parent >= 0 and first[row] <= last[row]:
            for column in range(sums.shape[1]):
                sums[parent, column] += sums[row, column]
            first[parent] = min(first[parent], first[row])
            last[parent] = max(last[parent], last[row])


def find_holders(
    launches: tuple[Array, ...],
    tree: tuple[Array, ...],
    seen: tuple[Array, ...],
    places: Array,
    rows: tuple[Array, ...],
) -> int:
    """Find which paths hold each kernel, and in how many of their ranges.

    The way up from a range ends where it meets one that has the kernel already: what is above that
    has it too. So the time it takes is that of naming each kernel of each range once. Rows for
    which there is no room are counted, but not written.

    Parameters
    ----------
    launches
        ``kernel, range``: by kernel, its number and the row of a range that launched it.
    tree
        ``parents, nodes``: the row of the range around each, -1 where there is none; and its path.
    seen
        ``ranges, nodes, rows``, the first two -1: the last kernel that each range and each path was
        found to hold, and the row of each path with that kernel.
    places
        Becomes the row of each launch.
    rows
        Room for ``kernel, node, above, ranges`` of each kernel of a path: the row of the path
        above, -1 where there is none, and how many ranges hold the kernel.

    Returns
    -------
    How many rows there are.
    """
    kernels, ranges = launches
    parents, nodes = tree
    range_has, node_has, row_of = seen
    of_kernel, of_node, above, held = rows
    count = 0
    for place in range(kernels.size):
        kernel, at, below = kernels[place], ranges[place], -1
        places[place] = -1
        while at >= 0:
            node = nodes[at]
            if node_has[node] != kernel:
                node_has[node], row_of[node] = kernel, count
                if count < held.size:
                    of_kernel[count], of_node[count] = kernel, node
                    above[count], held[count] = -1, 0
                count += 1
            row = row_of[node]
            if places[place] < 0:
                places[place] = row
            if 0 <= below < held.size:
                above[below] = row
            if range_has[at] == kernel:
                break
            range_has[at] = kernel
            if row < held.size:
                held[row] += 1
            below, at = row, parents[at]
    return count


def inherit(parents: Array, own: Array, found: Array) -> None:
    """Find the innermost marked range among each range and those around it.

    Parameters
    ----------
    parents
        The row of the range around each, -1 where there is none; it comes before what is in it.
    own
        Its own row where it is marked, else -1.
    found
        Becomes the row; -1 where there is none.
    """
    for row in range(parents.size):
        found[row] = own[row]
        if own[row] < 0 and parents[row] >= 0:
            found[row] = found[parents[row]]


def inherit_outermost(parents: Array, own: Array, stops: Array, found: Array) -> None:
    """Find of each range the outermost one that is marked.

    Parameters
    ----------
    parents, own, found
        As of `inherit`.
    stops
        Where a range and all around it is none that counts for what is inside.
    """
    for row in range(parents.size):
        found[row] = -1 if stops[row] else own[row]
        if not stops[row] and parents[row] >= 0 and found[parents[row]] >= 0:
            found[row] = found[parents[row]]


def mark_around(parents: Array, marks: Array) -> None:
    """Mark the enclosing ranges of marked ranges."""
    for row in range(parents.size - 1, -1, -1):
        if marks[row] and parents[row] >= 0:
            marks[parents[row]] = True
