"""Say which parts of a bill of materials have known weaknesses: 1 where one has, 3 if untold.

    python .ci/weaknesses.py BILL.json DATABASE     # a folder or zip of advisories in OSV's format
    python .ci/weaknesses.py BILL.json AUDIT.json   # what `pip-audit --format json` found

Nothing passes that was not looked at: a database without advisories for PyPI, a part that was
skipped or is not named, and a file that cannot be read are all 3.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

NONE, KNOWN, UNTOLD = 0, 1, 3
try:
    from packaging.version import InvalidVersion, Version
except ImportError:
    print("audit: skipped, weaknesses are not known: install packaging", file=sys.stderr)
    sys.exit(UNTOLD)

Parts = Mapping[str, str]
Json = dict[str, Any]


class UntoldError(Exception):
    """It cannot be told whether there are known weaknesses."""


_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile)
"""What reading a file gives that is not what it should be."""


def main(words: Sequence[str]) -> int:
    """Judge a bill by what is given, and return the exit code."""
    try:
        parts = _parts(Path(words[0]))
        found = list(_judged(parts, Path(words[1])))
    except (UntoldError, *_FAULTS) as error:
        print(f"audit: skipped, weaknesses are not known: {error}", file=sys.stderr)
        return UNTOLD
    print(*found or [f"audit: {len(parts)} parts, no known weakness"], sep="\n")
    return KNOWN if found else NONE


def _parts(bill: Path) -> Parts:
    parts = {_canonical(each["name"]): each["version"] for each in _read(bill)["components"]}
    if not parts:
        raise UntoldError(f"{bill} names no part")
    return parts


def _read(path: Path) -> Json:
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def _judged(parts: Parts, given: Path) -> Iterator[str]:
    is_database = given.is_dir() or zipfile.is_zipfile(given)
    return _by_advisories(parts, given) if is_database else _by_audit(parts, _read(given))


def _by_audit(parts: Parts, audit: Json) -> Iterator[str]:
    told = {_canonical(each["name"]): each for each in audit["dependencies"]}
    unseen = [
        n for n, v in parts.items() if "vulns" not in told.get(n, {}) or told[n]["version"] != v
    ]
    if unseen:
        raise UntoldError(f"{', '.join(sorted(unseen))} was not looked at")
    for name, version in parts.items():
        yield from (f"{name} {version}: {each['id']}" for each in told[name]["vulns"])


def _by_advisories(parts: Parts, database: Path) -> Iterator[str]:
    number = 0
    for advisory in _advisories(database):
        affected = [a for a in advisory.get("affected", ()) if a["package"]["ecosystem"] == "PyPI"]
        number += bool(affected)
        for each in affected if "withdrawn" not in advisory else ():
            name = _canonical(each["package"]["name"])
            if name in parts and _holds(each, parts[name]):
                yield f"{name} {parts[name]}: {advisory['id']}"
    if not number:
        raise UntoldError(f"{database} holds no advisory for PyPI")


def _advisories(database: Path) -> Iterator[Json]:
    if database.is_dir():
        yield from map(_read, sorted(database.rglob("*.json")))
        return
    with zipfile.ZipFile(database) as packed:
        for name in packed.namelist():
            if name.endswith(".json"):
                yield json.loads(packed.read(name))


def _holds(affected: Json, version: str) -> bool:
    """Tell whether a version is one of those that an advisory is about."""
    ranges = [each for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
    return version in affected.get("versions", ()) or any(_within(r, version) for r in ranges)


def _within(range_: Json, version: str) -> bool:
    """Tell whether the last event up to a version, of those in order, introduces the weakness."""
    is_affected, own = False, Version(version)
    for event in sorted(range_["events"], key=_place):
        [(what, said)] = event.items()
        at = _version(said)
        is_affected |= what == "introduced" and own >= at
        is_affected &= not (what == "fixed" and own >= at)
        is_affected &= not (what == "last_affected" and own > at)
    return is_affected


def _place(event: Json) -> Version:
    return _version(next(iter(event.values())))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UntoldError(f"an advisory names a version {text!r}") from error


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
