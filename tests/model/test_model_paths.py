"""Paths of ranges: their texts, and one tree made of several."""

from __future__ import annotations

import polars as pl
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.model import PATHS, PathTree, in_any, path_number, path_texts
from tracekit.model._paths import combine_paths

Node = tuple[int | None, str]
"""Parent and label."""


def tree(nodes: list[Node]) -> pl.DataFrame:
    """Return a table ``paths`` of some nodes, in their order."""
    depths: list[int] = []
    for parent, _ in nodes:
        depths.append(0 if parent is None else depths[parent] + 1)
    rows = [
        (number, parent, label, depth)
        for number, ((parent, label), depth) in enumerate(zip(nodes, depths, strict=True))
    ]
    return pl.DataFrame(rows, PATHS.schema, orient="row")


def chain(number: int, nodes: list[Node]) -> list[str]:
    """Return the labels of a path, outermost first."""
    parent, label = nodes[number]
    return [*([] if parent is None else chain(parent, nodes)), label]


def text(number: int, nodes: list[Node]) -> str:
    """Return the text of a path, the slow way."""
    labels = chain(number, nodes)
    more = len(labels) - 32
    if more > 0:
        labels = [*labels[:8], f"... ({more} more)", *labels[-24:]]
    return " > ".join(labels)


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """Draw trees, many of them deep, in which no two paths are equal."""
    nodes: list[Node] = []
    for _ in range(draw(st.integers(0, 60))):
        above = draw(st.sampled_from([None, *range(len(nodes))[-3:]])) if nodes else None
        node = (above, draw(st.sampled_from("abc")))
        if node not in nodes:
            nodes.append(node)
    for number in range(draw(st.sampled_from([0, 0, 31, 32, 33, 80]))):
        nodes.append((len(nodes) - 1 if nodes else None, f"deep {number}"))
    return nodes


def test_a_tree_has_room_for_so_many_paths_and_twice_as_many_once_it_grew() -> None:
    found = PathTree(room=4)
    numbers = [path_number(-1, label, found.arrays()) for label in range(5)]
    assert numbers == [0, 1, 2, 3, -1]
    found.grow()
    assert [path_number(-1, label, found.arrays()) for label in range(9)] == [*range(8), -1]


def test_texts() -> None:
    paths = tree([(None, "step N"), (0, "forward"), (1, "a > b"), (None, "a")])
    numbers = pl.Series([2, None, 0, 2, 3], dtype=pl.Int32)
    assert path_texts(paths, numbers).to_list() == [
        "step N > forward > a > b", None, "step N", "step N > forward > a > b", "a",
    ]  # fmt: skip
    assert path_texts(paths, numbers[1:2]).to_list() == [None]
    assert path_texts(tree([]), numbers[1:2]).to_list() == [None]


@pytest.mark.parametrize(("depth", "left_out"), [(32, 0), (33, 1), (1000, 968)])
def test_texts_are_bounded(depth: int, left_out: int) -> None:
    paths = tree([(number - 1 if number else None, f"l{number}") for number in range(depth)])
    [found] = path_texts(paths, paths["path"][-1:]).to_list()
    labels = found.split(" > ")
    assert labels[:8] == [f"l{n}" for n in range(8)]
    assert labels[-24:] == [f"l{n}" for n in range(depth - 24, depth)]
    assert labels[8:-24] == ([f"... ({left_out} more)"] if left_out else [])


@settings(max_examples=examples(50, thorough=1000), deadline=None)
@given(nodes=trees(), marked=st.sampled_from("abcd"))
def test_all_as_found_one_by_one(nodes: list[Node], marked: str) -> None:
    paths = tree(nodes)
    expected = [text(number, nodes) for number in range(len(nodes))]
    assert path_texts(paths, paths["path"]).to_list() == expected
    is_in = [marked in chain(number, nodes) for number in range(len(nodes))]
    assert in_any(paths, paths["label"] == marked).to_list() == is_in


@settings(max_examples=examples(50, thorough=1000), deadline=None)
@given(several=st.lists(trees(), min_size=1, max_size=3))
def test_equal_paths_of_several_are_one(several: list[list[Node]]) -> None:
    paths, numbers = combine_paths([tree(nodes) for nodes in several])
    whole = list(zip(paths["parent_path"].to_list(), paths["label"].to_list(), strict=True))
    assert paths.equals(tree(whole))
    assert len(set(whole)) == len(whole)
    chains = [[chain(number, nodes) for number in range(len(nodes))] for nodes in several]
    assert [[chain(n, whole) for n in each.to_list()] for each in numbers] == chains
    assert len(whole) == len({tuple(one) for each in chains for one in each})
