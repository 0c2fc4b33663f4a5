"""Peak resources of a cluster, and the share of them that programs reach."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracekit.errors import InputError, UsageError
from tracekit.support.files import schemas
from tracekit.support.toml import NotToml, parse_toml

RESOURCES = ("compute", "memory", "pcie", "ethernet", "nvlink")
"""What a step's time is spent on: FLOPs, memory of the GPU, and the links to it."""

_VERSION = 1
_KEYS = {
    "version", "title", "source", "gpus_per_server", "efficiency", "efficiencies", "peaks", "sweep",
}  # fmt: skip
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kMGTP]?)(FLOP|B|b)/s\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNITS = {"FLOP": 1.0, "B": 1.0, "b": 0.125}
_MOST_BYTES = 1 << 20
_MOST_GPUS = 9999
_EXAMPLE = "write it as 25 Gb/s, 50 GB/s or 11 TFLOP/s"


@dataclass(frozen=True)
class Hardware:
    """A cluster, as far as the time of a step depends on it.

    Parameters
    ----------
    name
        Its name.
    peaks
        Of each of `RESOURCES` the most FLOP/s or bytes/s, links per direction.
    efficiencies
        Which share of these programs get.
    gpus_per_server
        How many GPUs NVLinks join.
    sweep
        Values of some resources that are worth trying, as they are written.
    title, source
        What it is, and where that is known from.
    """

    name: str
    peaks: Mapping[str, float]
    efficiencies: Mapping[str, float]
    gpus_per_server: int = 8
    sweep: Mapping[str, Sequence[str]] | None = None
    title: str = ""
    source: str = ""

    def rate(self, resource: str) -> float:
        """Return the FLOP/s or bytes/s that programs get."""
        return self.peaks[resource] * self.efficiencies[resource]

    def with_peak(self, resource: str, peak: float) -> Hardware:
        """Return the same cluster with another peak of a resource."""
        return replace(self, peaks={**self.peaks, resource: peak})


def parse_rate(text: str, resource: str) -> float:
    """Return the FLOP/s or bytes/s that a text means, such as ``25 Gb/s``.

    Raises
    ------
    UsageError
        If it is no rate, or none of this resource.
    """
    found = _RATE.fullmatch(text)
    if found is None or (found[3] == "FLOP") != (resource == "compute"):
        raise UsageError(f"{text!r} is no rate of {resource}", _EXAMPLE)
    rate = float(found[1]) * _PREFIXES[found[2]] * _UNITS[found[3]]
    if not rate:
        raise UsageError(f"{text!r} is no rate of {resource}", "give more than 0")
    return rate


def hardware_names() -> list[str]:
    """Return the names of the bundled clusters."""
    return sorted(path.stem for path in (schemas() / "hardware").glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """Return a cluster that comes with tracekit, or one of a TOML file.

    Raises
    ------
    UsageError
        If there is none of that name.
    InputError
        If the file is not as ``schemas/hardware/pai.toml`` is.
    """
    shipped = schemas() / "hardware" / f"{name}.toml"
    path = shipped if name in hardware_names() else Path(name)
    if not path.is_file():
        known = ", ".join(hardware_names())
        raise UsageError(f"no hardware {name!r}", f"there is {known}, or give a TOML file")
    return _made(path.stem, read_toml(path), path)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a small TOML file.

    Raises
    ------
    InputError
        If it cannot be read as one.
    """
    try:
        content = path.read_bytes()
        if len(content) > _MOST_BYTES:
            raise InputError(f"{path} is too large for a file written by hand")
        return parse_toml(content.decode())
    except OSError as error:
        raise InputError(f"{path} cannot be read", error.strerror) from error
    except (NotToml, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML", str(error)) from error


def _made(name: str, content: Mapping[str, Any], path: Path) -> Hardware:
    problem = next(_problems(content), None)
    if problem:
        raise InputError(f"{path}: {problem}", "schemas/hardware/pai.toml shows how it is written")
    try:
        peaks = {key: parse_rate(content["peaks"][key], key) for key in RESOURCES}
        for key, values in content.get("sweep", {}).items():
            for value in values:
                parse_rate(value, key)
    except UsageError as error:
        raise InputError(f"{path}: {error.what}", error.hint) from error
    every = dict.fromkeys(RESOURCES, float(content["efficiency"]))
    own = {key: float(value) for key, value in content.get("efficiencies", {}).items()}
    return Hardware(
        name, peaks, {**every, **own}, content["gpus_per_server"], content.get("sweep", {}),
        content.get("title", name), content.get("source", ""),
    )  # fmt: skip


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with what a file says."""
    if content.get("version") != _VERSION:
        yield f"version is {content.get('version')!r}, and {_VERSION} is known"
    unknown = sorted(content.keys() - _KEYS)
    if unknown:
        yield f"the key {unknown[0]!r} is unknown"
    tables = {key: content.get(key, {}) for key in ("peaks", "efficiencies", "sweep")}
    for key, table in tables.items():
        if not isinstance(table, dict) or table.keys() - set(RESOURCES):
            yield f"{key} is no table of {', '.join(RESOURCES)}"
    absent = [key for key in RESOURCES if not isinstance(tables["peaks"].get(key), str)]
    if absent:
        yield f"peaks has no text for {absent[0]}"
    if not all(_is_texts(values) for values in tables["sweep"].values()):
        yield "sweep holds something else than lists of texts"
    shares = [content.get("efficiency"), *tables["efficiencies"].values()]
    if not all(_is_share(share) for share in shares):
        yield "an efficiency is not a number above 0, and up to 1"
    gpus = content.get("gpus_per_server")
    if type(gpus) is not int or not 1 <= gpus <= _MOST_GPUS:
        yield "gpus_per_server is no number of GPUs"


def _is_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_share(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= 1  # type: ignore[operator]
