"""The moments between two system calls of a store's files, which no test of processes hits."""

from __future__ import annotations

import fcntl

import pytest

from tracekit.store._staging import Folders
from tracekit.store._store import make_id, read_id

PREFIX = "0123abcd-"


@pytest.fixture
def folders(tmp_path):
    folders = Folders(tmp_path / "store")
    folders.create()
    return folders


def test_a_lock_whose_file_a_sweep_has_removed_is_not_relied_on(folders, monkeypatch):
    real = fcntl.flock
    locked = []

    def flock(descriptor, operation):
        if not locked:
            next(folders.staging.glob("*.lock")).unlink()
        locked.append(descriptor)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with folders.claim(PREFIX) as staged:
        assert len(locked) == 2
        folders.sweep(PREFIX, set)
        assert staged.exists()
    assert list(folders.staging.iterdir()) == []


def test_a_run_committed_after_the_first_look_is_not_left_over(folders):
    with folders.claim(PREFIX) as staged:
        folders.publish(staged)
    answers = [set(), {staged.name}]
    folders.sweep(PREFIX, lambda: answers.pop(0))
    assert (folders.runs / staged.name).exists()
    folders.sweep(PREFIX, set)
    assert list(folders.runs.iterdir()) == []


def test_the_first_id_of_a_store_stays(folders, monkeypatch):
    claim = Folders.claim

    def claim_late(self, prefix):
        monkeypatch.setattr(Folders, "claim", claim)
        first.append(make_id(self))
        return claim(self, prefix)

    first = []
    monkeypatch.setattr(Folders, "claim", claim_late)
    assert make_id(folders) == first[0] == read_id(folders)
    assert list(folders.staging.iterdir()) == []
