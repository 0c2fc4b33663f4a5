"""Paths of nested NVTX ranges as a tree: each path is a label below a parent path, or a root.

The text of a path is made only for display, and shortened: in a program that never closes its
ranges, each range is inside all earlier ones, and the texts would grow with the square of their
number. Equal paths share an id, which is used to group rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.model._tables import PATHS
from tracekit.support.compiled import compiled, given
from tracekit.support.inner import inner

Array = NDArray[Any]

PATH_SEPARATOR = " > "
"""Separator between the labels of a path."""
_FIRST, _LAST = 8, 24
"""Number of first and last labels that are shown of a longer path."""


class PathNodes(NamedTuple):
    """Tree of paths as arrays, for compiled loops."""

    slots: Array
    """Hash table from path to its number, at most half full; -1 marks a free slot."""
    parent: Array
    label: Array
    depth: Array
    """For each path: the id of its parent path (-1 for a root), the id of its label (the name of
    the innermost range), and its number of ancestors."""
    total: Array
    """Array of one element: the number of paths."""


@inner
def path_slot(parent: int, label: int, paths: PathNodes) -> int:
    """Return the slot of a path in its hash table, or the free slot for it."""
    slots, parents, labels = paths.slots, paths.parent, paths.label
    mask = len(slots) - 1
    slot = ((parent + 1) * 1_000_003 + label * 7_919) & mask
    while slots[slot] >= 0 and (parents[slots[slot]] != parent or labels[slots[slot]] != label):
        slot = (slot + 1) & mask
    return slot


@inner
def path_number(parent: int, label: int, paths: PathNodes) -> int:
    """Return the id of a path, adding the path if it is new.

    Parameters
    ----------
    parent, label
        Number of the parent path, or -1; and number of the path's own label.
    paths
        The tree of paths, to which a new one is added.

    Returns
    -------
    The number; -1 if the path is new and the arrays are full.
    """
    slot = path_slot(parent, label, paths)
    number: int = paths.slots[slot]
    if number < 0 and 2 * (paths.total[0] + 1) <= len(paths.slots):
        number = paths.total[0]
        paths.slots[slot] = number
        paths.parent[number], paths.label[number] = parent, label
        paths.depth[number] = paths.depth[parent] + 1 if parent >= 0 else 0
        paths.total[0] += 1
    return number


def place_paths(paths: PathNodes) -> None:
    """Rebuild the hash table: enter all paths into it while it is empty."""
    for node in range(paths.total[0]):
        paths.slots[path_slot(paths.parent[node], paths.label[node], paths)] = node


def number_paths(parents: Array, labels: Array, paths: PathNodes, numbers: Array) -> None:
    """Find the id of each path in another tree of paths; add paths that the other tree lacks.

    Parameters
    ----------
    parents, labels
        For each path, parents before children: the id of its parent (-1 for a root) and of its
        label.
    paths
        The other tree, with room for all paths.
    numbers
        Output: the id of each path in the other tree.
    """
    for row in range(len(parents)):
        parent = numbers[parents[row]] if parents[row] >= 0 else -1
        numbers[row] = path_number(parent, labels[row], paths)


class PathTree:
    """Tree of paths of nested ranges, to which a compiled loop adds paths.

    Parameters
    ----------
    room
        Number of paths that fit before the tree has to `grow`.
    """

    def __init__(self, room: int = 1 << 10) -> None:
        places = 1 << (room - 1).bit_length()
        self._nodes = np.zeros((3, places), np.int64)
        self._slots = np.full(2 * places, -1, np.int64)
        self._count = np.zeros(1, np.int64)

    def arrays(self) -> PathNodes:
        """Return the tree as arrays, for compiled loops."""
        parent, label, depth = self._nodes
        return PathNodes(self._slots, parent, label, depth, self._count)

    def grow(self) -> None:
        """Double the capacity for paths."""
        self._nodes = np.hstack([self._nodes, np.zeros_like(self._nodes)])
        self._slots = np.full(2 * self._slots.size, -1, np.int64)
        compiled(place_paths, len(self))(self.arrays())

    def __len__(self) -> int:
        return int(self._count[0])

    def table(self, labels: pl.Series) -> pl.DataFrame:
        """Return the canonical table ``paths``, given the text of each label."""
        parent, label, depth = (pl.Series(row[: len(self)]) for row in self._nodes)
        return PATHS.conform(
            pl.DataFrame(
                {
                    "path": pl.int_range(len(self), eager=True),
                    "parent_path": parent.set(parent < 0, None),
                    "label": labels.gather(label),
                    "depth": depth,
                }
            )
        )


def combine_paths(tables: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, list[pl.Series]]:
    """Merge several trees of paths; equal paths become one.

    Returns
    -------
    The canonical table of the merged tree, and for each of `tables` a map from its path numbers to
    those of the merged tree.
    """
    every, parents = (pl.concat([table[of] for table in tables]) for of in ("label", "parent_path"))
    texts = every.unique(maintain_order=True)
    ids = pl.DataFrame({"label": texts}).with_row_index("id")
    labels = every.to_frame().join(ids, on="label", how="left", maintain_order="left")["id"]
    rows = given(parents, np.int64, null=-1), given(labels, np.int64)
    found = np.empty(len(every), np.int64)
    tree, loop = PathTree(max(found.size, 1)), compiled(number_paths, found.size)
    ends = list(itertools.accumulate((table.height for table in tables), initial=0))
    places = [slice(*edges) for edges in itertools.pairwise(ends)]
    for span in places:
        loop(rows[0][span], rows[1][span], tree.arrays(), found[span])
    numbers = pl.Series(found, dtype=PATHS.schema["path"])
    return tree.table(texts), [numbers[span] for span in places]


def path_texts(paths: pl.DataFrame, numbers: pl.Series) -> pl.Series:
    """Return the texts of paths: their labels, outermost first.

    Of a path with more than 32 labels the first 8 and the last 24 are shown, with the count of the
    labels between. `numbers` are numbers of paths in the canonical table `paths`; the text of null
    (no path) is null.
    """
    shown = numbers.drop_nulls().unique().sort()
    depth = paths["depth"].gather(shown)
    left_out = depth + 1 - (_FIRST + _LAST)
    is_long = left_out > 0
    texts = _texts(paths, shown, _LAST)
    above = _climbed(paths, shown, _LAST)
    if is_long.any():
        highest = pl.Series(_at_depth(paths, _FIRST - 1), dtype=above.dtype).gather(shown)
        above = highest.zip_with(is_long, above)
    heads = _texts(paths, above, _FIRST)
    known = pl.DataFrame({"path": shown, "text": texts, "head": heads, "more": left_out}).select(
        "path",
        text=pl.when(pl.col("head").is_null())
        .then("text")
        .when(pl.col("more") > 0)
        .then(pl.format("{}{}... ({} more){}{}", "head", *_GAP, "more", *_GAP, "text"))
        .otherwise(pl.format("{}{}{}", "head", *_GAP, "text")),
    )
    requested = pl.DataFrame({"path": numbers})
    return requested.join(known, on="path", how="left", maintain_order="left")["text"]


_GAP = (pl.lit(PATH_SEPARATOR),)


def _texts(paths: pl.DataFrame, numbers: pl.Series, most: int) -> pl.Series:
    """Join the last `most` labels of each path into a text; null where the path id is null."""
    texts = paths["label"].gather(numbers)
    for _ in range(most - 1):
        numbers = paths["parent_path"].gather(numbers)
        if numbers.null_count() == len(numbers):
            break
        row = pl.DataFrame({"text": texts, "label": paths["label"].gather(numbers)})
        longer = pl.format("{}{}{}", "label", *_GAP, "text")
        texts = row.select(pl.coalesce(longer, "text")).to_series()
    return texts


def _climbed(paths: pl.DataFrame, numbers: pl.Series, levels: int) -> pl.Series:
    """Return the ancestor of each path that is `levels` above; null where there is none."""
    for _ in range(levels):
        if numbers.null_count() == len(numbers):
            break
        numbers = paths["parent_path"].gather(numbers)
    return numbers


def _at_depth(paths: pl.DataFrame, depth: int) -> Array:
    """Return for each path its ancestor at `depth`; the path itself if it is not deeper."""
    steps = _Steps(paths)
    paths_themselves = np.arange(paths.height)
    deep = paths["depth"].to_numpy() > depth
    above = np.where(deep, steps.parent, paths_themselves)
    for _ in range(steps.doublings):
        above = above[above]
    return above


def in_any(paths: pl.DataFrame, flag: pl.Series) -> pl.Series:
    """Test for each path whether `flag` is true of it or of an ancestor."""
    steps = _Steps(paths)
    found, above = flag.to_numpy(), steps.parent
    for _ in range(steps.doublings):
        found, above = found | found[above], above[above]
    return pl.Series(found)


class _Steps:
    """Pointers from each path to an ancestor, to find roots by jumps that double in length.

    ``parent`` of a root is the root itself; after ``doublings`` times ``above = above[above]``
    every path points to its root.
    """

    def __init__(self, paths: pl.DataFrame) -> None:
        self.parent = paths.select(pl.coalesce("parent_path", "path")).to_series().to_numpy()
        deepest: Any = paths["depth"].max()
        self.doublings = int(deepest or 0).bit_length()
