"""The leaf pages of a table: against a plain walk through its tree."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_helpers import execute

from tracekit.sources.sqlite import _btree
from tracekit.sources.sqlite._sqlite_header import HEADER_BYTES, Geometry, geometry

ROOT = 2


def _file(folder: Path, page_size: int, rows: int) -> Path:
    path = folder / "t.db"
    pick = random.Random(rows)
    widths = (7, 14, 30, 62)  # rowids of all lengths, of which negative ones have the longest
    rowids = {
        pick.randrange(-(1 << pick.choice(widths)), 1 << pick.choice(widths)) for _ in range(rows)
    }
    values = [(rowid, "x" * pick.randrange(40)) for rowid in sorted(rowids)]
    insert = "INSERT INTO t VALUES (?, ?)"
    settings = f"PRAGMA page_size = {page_size}"
    execute(path, settings, "CREATE TABLE t (id INTEGER PRIMARY KEY, b)", insert, many=values)
    return path


def _number(content: bytes, at: int) -> int:
    """Return the number of up to nine bytes that is at a place."""
    value = 0
    for place in range(8):
        byte = content[at + place]
        value = value << 7 | byte & 127
        if byte < 128:
            return value
    value = value << 8 | content[at + 8]
    return value - (1 << 64) if value >> 63 else value


def _walk(content: bytes, size: int, page: int, upto: int) -> Iterator[tuple[int, int]]:
    """Yield the leaf pages below a page, and the greatest rowid that each may hold."""
    body = content[(page - 1) * size : page * size]
    if body[0] == 13:
        yield page, upto
        return
    for cell in range(int.from_bytes(body[3:5], "big")):
        at = int.from_bytes(body[12 + 2 * cell : 14 + 2 * cell], "big")
        child = int.from_bytes(body[at : at + 4], "big")
        yield from _walk(content, size, child, _number(body, at + 4))
    yield from _walk(content, size, int.from_bytes(body[8:12], "big"), upto)


def _leaves(path: Path) -> tuple[_btree.Leaves | None, Geometry]:
    content = path.read_bytes()
    division = geometry(content[:HEADER_BYTES], len(content))
    assert division is not None
    file = os.open(path, os.O_RDONLY)
    try:
        return _btree.leaves(file, division, ROOT), division
    finally:
        os.close(file)


@pytest.mark.parametrize("at_once", [1, 3, 64])
@pytest.mark.parametrize(
    ("page_size", "rows"), [(512, 9000), (1024, 5000), (4096, 1), (65536, 9000)]
)
def test_leaves_are_those_of_a_plain_walk(tmp_path, monkeypatch, at_once, page_size, rows):
    monkeypatch.setattr(_btree, "_PAGES_AT_ONCE", at_once)
    path = _file(tmp_path, page_size, rows)
    found, _ = _leaves(path)
    assert found is not None
    wanted = list(_walk(path.read_bytes(), page_size, ROOT, _btree.GREATEST))
    assert list(zip(found.pages.tolist(), found.upto.tolist(), strict=True)) == wanted
    assert len(wanted) > 9 or rows == 1 or page_size == 65536


def test_a_page_that_is_used_twice_is_refused(tmp_path):
    path = _file(tmp_path, 512, 3000)
    content = bytearray(path.read_bytes())
    root = (ROOT - 1) * 512
    cell = int.from_bytes(content[root + 12 : root + 14], "big")
    content[root + 8 : root + 12] = content[root + cell : root + cell + 4]
    path.write_bytes(content)
    assert _leaves(path)[0] is None


@pytest.mark.parametrize("byte", [0, 3, 12, 13])
def test_a_page_of_a_tree_that_is_cut_or_of_another_kind_is_refused(tmp_path, byte):
    path = _file(tmp_path, 512, 3000)
    content = bytearray(path.read_bytes())
    interior = [at for at in range(512, len(content), 512) if content[at] == 5]
    content[interior[-1] + byte] = 255
    path.write_bytes(content)
    assert _leaves(path)[0] is None
