"""Paths of ranges: a tree, in which each path is a label below another path, or below none.

Text is made of it only where it is shown, and is bounded there: of ranges that a program never ends
each lies in all that came before, so that texts of all paths would grow with the square of their
number. Equal paths have one number; what is grouped by path is grouped by that.
"""

from __future__ import annotations

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
"""What stands between the labels of a path."""
_FIRST, _LAST = 8, 24
"""How many labels of a longer path are shown."""


class PathNodes(NamedTuple):
    """Tree of paths as arrays for loops.

    Parameters
    ----------
    slots
        A hash table of paths, at most half full: the number of each, -1 where there is none.
    parent, label, depth
        What each path consists of, and how many are around it.
    total
        One number: how many there are.
    """

    slots: Array
    parent: Array
    label: Array
    depth: Array
    total: Array


@inner
def path_slot(parent: int, label: int, paths: PathNodes) -> int:
    """Return the slot of a path in its hash table, or the free slot for it."""
    slots, parents, labels = paths.slots, paths.parent, paths.label
    mask = slots.size - 1
    slot = ((parent + 1) * 1_000_003 + label * 7_919) & mask
    while slots[slot] >= 0 and (parents[slots[slot]] != parent or labels[slots[slot]] != label):
        slot = (slot + 1) & mask
    return slot


@inner
def path_number(parent: int, label: int, paths: PathNodes) -> int:
    """Return the number of a path, which is new if it was not met before.

    Parameters
    ----------
    parent, label
        The number of the path around it, or -1; and that of its own label.
    paths
        All paths.

    Returns
    -------
    The number; -1 if it is new and there is no room for it.
    """
    slot = path_slot(parent, label, paths)
    number: int = paths.slots[slot]
    if number < 0 and 2 * (paths.total[0] + 1) <= paths.slots.size:
        number = paths.total[0]
        paths.slots[slot] = number
        paths.parent[number], paths.label[number] = parent, label
        paths.depth[number] = paths.depth[parent] + 1 if parent >= 0 else 0
        paths.total[0] += 1
    return number


def place_paths(paths: PathNodes) -> None:
    """Put all paths into a hash table that is empty."""
    for node in range(paths.total[0]):
        paths.slots[path_slot(paths.parent[node], paths.label[node], paths)] = node


def number_paths(parents: Array, labels: Array, paths: PathNodes, numbers: Array) -> None:
    """Give paths the numbers that they have in another tree, to which new ones are added.

    Parameters
    ----------
    parents, labels
        Of each path, after the path that is its parent; -1 for none.
    paths
        The other tree, with room for all.
    numbers
        Becomes the number of each.
    """
    for row in range(parents.size):
        parent = numbers[parents[row]] if parents[row] >= 0 else -1
        numbers[row] = path_number(parent, labels[row], paths)


class PathTree:
    """Paths that are added one by one in a loop.

    Parameters
    ----------
    room
        For how many there is room at first.
    """

    def __init__(self, room: int = 1 << 10) -> None:
        places = 1 << (room - 1).bit_length()
        self._nodes = np.zeros((3, places), np.int64)
        self._slots = np.full(2 * places, -1, np.int64)
        self._count = np.zeros(1, np.int64)

    def arrays(self) -> PathNodes:
        """Return the arrays for the loops."""
        parent, label, depth = self._nodes
        return PathNodes(self._slots, parent, label, depth, self._count)

    def grow(self) -> None:
        """Make room for twice as many."""
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
    The canonical table, and for each of `tables` the number that each of its paths has there.
    """
    texts = pl.concat([table["label"] for table in tables]).unique(maintain_order=True)
    ids = pl.DataFrame({"label": texts}).with_row_index("id")
    rows = sum(table.height for table in tables)
    tree, loop, numbers = PathTree(max(rows, 1)), compiled(number_paths, rows), []
    for table in tables:
        labels = table.select("label").join(ids, on="label", how="left", maintain_order="left")
        parents = given(table["parent_path"].fill_null(-1), np.int64)
        found = np.empty(table.height, np.int64)
        loop(parents, given(labels["id"], np.int64), tree.arrays(), found)
        numbers.append(pl.Series(found, dtype=PATHS.schema["path"]))
    return tree.table(texts), numbers


def path_texts(paths: pl.DataFrame, numbers: pl.Series) -> pl.Series:
    """Return the texts of some paths: their labels, outermost first.

    Of a path of more than 32 labels the first 8 and the last 24 are there, and how many are not.

    Parameters
    ----------
    paths
        The canonical table.
    numbers
        The paths; null for none, which has no text.
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
    asked = pl.DataFrame({"path": numbers})
    return asked.join(known, on="path", how="left", maintain_order="left")["text"]


_GAP = (pl.lit(PATH_SEPARATOR),)


def _texts(paths: pl.DataFrame, numbers: pl.Series, most: int) -> pl.Series:
    """Return at most so many labels of each path, those that are next to it; null for none."""
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
    """Return the path that is so many levels above each one, null where there is none."""
    for _ in range(levels):
        if numbers.null_count() == len(numbers):
            break
        numbers = paths["parent_path"].gather(numbers)
    return numbers


def _at_depth(paths: pl.DataFrame, depth: int) -> Array:
    """Return the path of some depth that each path goes through; itself where it is no deeper."""
    steps = _Steps(paths)
    own = np.arange(paths.height)
    deep = paths["depth"].to_numpy() > depth
    above = np.where(deep, steps.parent, own)
    for _ in range(steps.doublings):
        above = above[above]
    return above


def in_any(paths: pl.DataFrame, own: pl.Series) -> pl.Series:
    """Tell of each path whether something that is `own` of its label is of it or one around it."""
    steps = _Steps(paths)
    found, above = own.to_numpy(), steps.parent
    for _ in range(steps.doublings):
        found, above = found | found[above], above[above]
    return pl.Series(found)


class _Steps:
    """How to go from paths to those around them, twice as far each time.

    ``parent`` is a path's own number where there is none around it; after ``doublings`` times
    ``above = above[above]`` the outermost one is reached.
    """

    def __init__(self, paths: pl.DataFrame) -> None:
        self.parent = paths.select(pl.coalesce("parent_path", "path")).to_series().to_numpy()
        deepest: Any = paths["depth"].max()
        self.doublings = int(deepest or 0).bit_length()
