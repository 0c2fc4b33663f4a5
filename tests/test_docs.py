"""Pages that repeat declarations are as these are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def _pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.pages())


@pytest.mark.parametrize("name", ["tables.md", "info.md"])
def test_pages_are_as_generated(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == _pages()[name]
