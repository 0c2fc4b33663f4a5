"""The digest of a file's content."""

from __future__ import annotations

import hashlib

import pytest

from tracekit.errors import InputError
from tracekit.store import _jobs, file_digest

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(("content", "digest"), [(b"abc", ABC), (b"", EMPTY)])
def test_it_is_sha_256(tmp_path, content, digest):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert file_digest(path) == digest


def test_chunks_are_reported_and_do_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(_jobs, "_CHUNK", 4)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    seen = []
    assert file_digest(path, seen.append) == hashlib.sha256(b"0123456789").hexdigest()
    assert seen == [4, 8, 10]


def test_what_cannot_be_read_is_reported(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=str(path)):
            file_digest(path)
