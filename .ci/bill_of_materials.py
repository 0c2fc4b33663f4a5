"""Write what tracekit is made of, as CycloneDX JSON: its parts, their versions and licences.

    python .ci/bill_of_materials.py > tracekit.cdx.json

The parts are the distributions that are installed beside it and that it needs without any extra. A
release has this file beside its wheel.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

ROOT = "tracekit"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_OPTIONAL = re.compile(r";.*\bextra\s*==")


def bill(root: str = ROOT) -> dict[str, Any]:
    """Return the bill of materials of a distribution."""
    parts = {_key(each): each for each in _closure(root)}
    main = parts.pop(_canonical(root))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": _component(main, "application")},
        "components": [_component(parts[key], "library") for key in sorted(parts)],
        "dependencies": [
            {"ref": _purl(each), "dependsOn": sorted(map(_purl, _needed(each)))}
            for each in (main, *(parts[key] for key in sorted(parts)))
        ],
    }


def _closure(root: str) -> Iterator[Distribution]:
    """Yield a distribution and all that it needs, each once."""
    waiting, seen = [distribution(root)], set()
    while waiting:
        each = waiting.pop()
        if _key(each) not in seen:
            seen.add(_key(each))
            yield each
            waiting += _needed(each)


def _needed(each: Distribution) -> list[Distribution]:
    """Return what a distribution needs here; of another platform nothing is installed."""
    found = []
    for requirement in each.requires or ():
        name = _NAME.match(requirement)
        if name and not _OPTIONAL.search(requirement):
            try:
                found.append(distribution(name[0]))
            except PackageNotFoundError:
                continue
    return found


def _component(each: Distribution, kind: str) -> dict[str, Any]:
    told = each.metadata
    named = told.get("License-Expression") or told.get("License") or ""
    licence = named.strip().splitlines()[0] if named.strip() else None
    component = {
        "type": kind, "bom-ref": _purl(each), "name": told["Name"], "version": each.version,
        "purl": _purl(each),
    }  # fmt: skip
    return component | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def _purl(each: Distribution) -> str:
    return f"pkg:pypi/{_key(each)}@{each.version}"


def _key(each: Distribution) -> str:
    return _canonical(each.metadata["Name"])


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    sys.stdout.write("\n")
