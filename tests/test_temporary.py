"""Folders of temporary files: those of tests that were killed are removed, and no others."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from temporary import own_folder, remove_leftovers

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_only_what_nobody_holds_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with own_folder() as left:
        (left / "file").touch()
    (tmp_path / "tracekit-tests-young").mkdir()  # which is about to be locked
    with own_folder() as held:
        remove_leftovers(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {held.name, "tracekit-tests-young"}
