"""Compiled loops over trees: of ranges, and of their paths.

A tree is a column of parents, -1 for a root. In a laid out tree (in depth-first order) the subtree
of node `a` is the nodes from `a` to `a + sizes[a] - 1`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

from tracekit.support.inner import inner

Array: TypeAlias = NDArray[Any]


def lay_out(sequence: Array, parents: Array, sizes: Array, free: Array, places: Array) -> None:
    """Assign each node of a tree its position in depth-first order.

    Parameters
    ----------
    sequence
        All nodes, each parent before its children; siblings are laid out in the order given here.
    parents
        The parent of each node.
    sizes
        On input all ones; on output the number of nodes in each subtree.
    free
        Scratch space, on input zeros: for each node the next free position below it, and one more
        element, the next position for a root.
    places
        Output: the position of each node.
    """
    for turn in range(len(sequence) - 1, -1, -1):
        node = sequence[turn]
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    for node in sequence:
        parent = parents[node]
        places[node] = free[parent]
        free[parent] += sizes[node]
        free[node] = places[node] + 1


def find_shortcuts(parents: Array, depths: Array, shortcuts: Array) -> None:
    """Find the depth of each tree node, and a shortcut to climb by: an ancestor far above it.

    A shortcut is as long as the next two together if these are equally long, else one step
    (skew-binary jump pointers): any ancestor is reached in logarithmically many steps.
    """
    for node in range(len(parents)):
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
    """Return the nearest common ancestor of two nodes of a tree in depth-first order; -1 if none.

    `low` comes before `high`; `shortcuts` are those of `find_shortcuts`.
    """
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
    """End the overlap of two running nodes; add its length to their nearest common ancestor.

    A node of the tree is a path of ranges, and runs while an op launched in it runs. The two nodes
    are neighbours at positions `place` - 1 and `place` of the running nodes `active`; they
    overlapped from the time noted there until `now`. `twice` has two sums per node, ns: of all
    overlaps that are added to it, and of those of the node with itself.
    """
    nodes, _, since = active
    node = meeting(nodes[place - 1], nodes[place], *tree)
    if node >= 0:
        twice[0, node] += now - since[place]
    if nodes[place - 1] == nodes[place]:
        twice[1, node] += now - since[place]


@inner
def leave(
    size: int, place: int, active: tuple[Array, ...], tree: tuple[Array, ...], twice: Array
) -> None:
    """Remove a node that stops running; add its overlaps with its neighbours to common ancestors.

    A node of the tree is a path of ranges, and runs while an op launched in it runs. It is number
    `place` of the `size` running nodes `active`; `twice` has the sums of overlap per node, ns.
    """
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
    """Return the position of the node that ends first, among the `size` nodes running now."""
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
    """Find for each tree node the time that summed interval lengths count more than once.

    At any time the intervals of some nodes are open: these nodes are active. Each counts on its
    path to the root, and two paths share all nodes from the nearest common ancestor on. So, with
    active nodes in depth-first order, each pair of neighbours counts twice from its common ancestor
    up to the root. The length of the union of the intervals in a subtree is then the sum of their
    lengths minus the sum, over the subtree, of the time found here.

    Parameters
    ----------
    intervals
        ``start, end, node``, ordered by start.
    tree
        ``parents, shortcuts, sizes`` of a laid out tree.
    active
        Scratch space for all nodes active at once: ``node, end, since``; ``since`` is the time from
        which a node is the neighbour of the one before it.
    twice
        On input zeros; output: per node the time, ns, that is counted twice by pairs of neighbours
        whose nearest common ancestor it is; in a second row, by pairs that are both this node.
    """
    starts, ends, where = intervals
    nodes, until, since = active
    size = 0
    for row in range(len(starts) + 1):
        while size > 0:
            first = first_to_end(size, until)
            if row < len(starts) and until[first] > starts[row]:
                break
            leave(size, first, active, tree, twice)
            size -= 1
        if row == len(starts):
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


def add_launched(ops: tuple[Array, ...], numbers: Array, launched: tuple[Array, ...]) -> None:
    """Add ops to the sums of the ranges that launched them; skip ops of ranges not in `numbers`.

    Parameters
    ----------
    ops
        ``range, start, end``, and whether the row counts as an op.
    numbers
        The numbers of the ranges, in order.
    launched
        Per range ``ops, total_ns`` (number, and time from start to end summed over the rows); then
        first start and last end, ns; updated.
    """
    ranges, starts, ends, counts = ops
    sums, first, last = launched
    at, size = 0, len(numbers)
    for row in range(len(ranges)):
        wanted = ranges[row]
        if at < size:
            at += wanted - numbers[at]  # most numbers in between are there
        if not 0 <= at < size or numbers[at] != wanted:
            at, high = 0, size
            while at < high:
                middle = (at + high) // 2
                if numbers[middle] < wanted:
                    at = middle + 1
                else:
                    high = middle
            if at == size or numbers[at] != wanted:
                continue
        sums[at, 0] += counts[row]
        sums[at, 1] += ends[row] - starts[row]
        first[at] = min(first[at], starts[row])
        last[at] = max(last[at], ends[row])


def carry_up(parents: Array, sums: Array, first: Array, last: Array) -> None:
    """Add to each range the work of nested ranges: sums, first start and last end.

    Parameters
    ----------
    parents
        The row of the range around each, -1 for a root; parents come before children.
    sums
        One row of sums per range; updated.
    first, last
        First start and last end of the ops of each range; for a range without ops, `first` is a
        later time than `last`. Updated.
    """
    for row in range(len(parents) - 1, -1, -1):
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
    """Find the paths that contain each kernel, and the number of ranges of the path that launch it.

    From each range that launches a kernel, the loop walks outward and stops at a range where the
    kernel was found before, as all ranges around it contain it too. So the time is proportional to
    the distinct pairs of range and kernel. Rows that do not fit in `rows` are counted, but not
    written.

    Parameters
    ----------
    launches
        ``kernel, range``, ordered by kernel: number of the kernel, and row of a range that launched
        it directly.
    tree
        ``parents, nodes``: the row of the range around each, -1 for a root; and the path of each.
    seen
        Scratch space, ``ranges, nodes, rows``, the first two -1: the last kernel found in each
        range and in each path, and the row of each path with that kernel.
    places
        Output: for each launch the position in `rows` at which it is counted.
    rows
        Output, ``kernel, node, above, ranges``, one row for each kernel of a path: `above` is the
        row of the parent path, -1 for a root; `ranges` the number of ranges with the kernel.

    Returns
    -------
    The number of rows, also of those that did not fit.
    """
    kernels, ranges = launches
    parents, nodes = tree
    range_has, node_has, row_of = seen
    of_kernel, of_node, above, ranges_of_path = rows
    count = 0
    for place in range(len(kernels)):
        kernel, at, below = kernels[place], ranges[place], -1
        places[place] = -1
        while at >= 0:
            node = nodes[at]
            if node_has[node] != kernel:
                node_has[node], row_of[node] = kernel, count
                if count < len(ranges_of_path):
                    of_kernel[count], of_node[count] = kernel, node
                    above[count], ranges_of_path[count] = -1, 0
                count += 1
            row = row_of[node]
            if places[place] < 0:
                places[place] = row
            if 0 <= below < len(ranges_of_path):
                above[below] = row
            if range_has[at] == kernel:
                break
            range_has[at] = kernel
            if row < len(ranges_of_path):
                ranges_of_path[row] += 1
            below, at = row, parents[at]
    return count


def inherit(parents: Array, marked: Array, found: Array) -> None:
    """Find for each range the innermost marked range among itself and the ranges around it.

    Parameters
    ----------
    parents
        The row of the range around each, -1 for a root; parents come before children.
    marked
        The range's own row if it is marked, else -1.
    found
        Output: the row of the marked range; -1 if there is none.
    """
    for row in range(len(parents)):
        found[row] = marked[row]
        if marked[row] < 0 and parents[row] >= 0:
            found[row] = found[parents[row]]


def inherit_outermost(parents: Array, marked: Array, stops: Array, found: Array) -> None:
    """Find for each range the outermost marked range among itself and the ranges around it.

    Parameters
    ----------
    parents, marked, found
        As of `inherit`.
    stops
        Per range: whether ranges nested in it find neither this range nor one around it.
    """
    for row in range(len(parents)):
        found[row] = -1 if stops[row] else marked[row]
        if not stops[row] and parents[row] >= 0 and found[parents[row]] >= 0:
            found[row] = found[parents[row]]


def mark_around(parents: Array, marks: Array) -> None:
    """Mark also all ranges around marked ranges, in the array `marks`."""
    for row in range(len(parents) - 1, -1, -1):
        if marks[row] and parents[row] >= 0:
            marks[parents[row]] = True
