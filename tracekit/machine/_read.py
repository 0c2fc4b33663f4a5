"""Topology files of all kinds, told apart by what is in them."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from tracekit.errors import InputError
from tracekit.machine._graph import Machine
from tracekit.machine._nccl_xml import parse_nccl_xml
from tracekit.machine._nvlink_status import (
    active_bricks,
    machine_of_status,
    parse_status,
    with_status,
)
from tracekit.machine._nvprof import SQLITE_MAGIC, read_nvprof
from tracekit.machine._rocm_topo import is_rocm_topo, parse_rocm_topo
from tracekit.machine._toml import read_machine_toml
from tracekit.machine._topo_matrix import machine_of_matrix, parse_matrix
from tracekit.support.toml import NotToml, parse_toml

MAX_TEXT = 16 << 20
"""Bytes beyond which a text is no topology."""

MAX_TOML = 4 << 20
"""Characters beyond which it is no machine as TOML either."""

_GIVE = (
    "give the output of `nvidia-smi topo -m`, with that of `nvidia-smi nvlink -s` after it if you"
    " have it, or of `rocm-smi --showtopo`, the XML of NCCL_TOPO_DUMP_FILE, an nvprof database, or"
    " a machine as TOML"
)
_TOML_LINE = re.compile(r"^(\[\[?[\w.\"' -]+\]\]?|[\w-]+ ?= ?[\"'\d\[{]).*$", re.MULTILINE)


def read_topology(path: Path) -> Machine:
    """Return the machine that a file describes, whatever it is called.

    Parameters
    ----------
    path
        The output of `nvidia-smi topo -m`, of `nvidia-smi nvlink` with `-s`, `-R` or `-p`, or of
        several of these one after the other, or of `rocm-smi --showtopo`; the XML that NCCL writes
        to NCCL_TOPO_DUMP_FILE; a database of nvprof; or a machine as TOML, like those that come
        with tracekit.

    Raises
    ------
    InputError
        If it is none of these, is damaged, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
            data = b"" if head == SQLITE_MAGIC else head + file.read(MAX_TEXT + 1 - len(head))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "check the path") from error
    if head == SQLITE_MAGIC:
        return read_nvprof(path)
    return _of_text(_text(data, path), path)


def _text(data: bytes, path: Path) -> str:
    if not data.strip():
        raise InputError(f"{path} is empty", _GIVE)
    if len(data) > MAX_TEXT:
        raise InputError(f"{path} is no topology: it is larger than 16 MiB", _GIVE)
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # from PowerShell
    if b"\0" in data and not wide:
        raise InputError(f"{path} is no topology: it is not text", _GIVE)
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def _of_text(text: str, path: Path) -> Machine:
    if text.lstrip().startswith("<"):
        return parse_nccl_xml(text.lstrip(), str(path), path.name)
    if _is_toml(text):
        return read_machine_toml(path)
    if is_rocm_topo(text):
        return parse_rocm_topo(text, str(path), path.name)
    matrix = parse_matrix(text, str(path))
    status = parse_status(text, str(path))
    if matrix is not None:
        machine = machine_of_matrix(matrix, path.name, active_bricks(status))
        return with_status(machine, status, str(path)) if status else machine
    if active_bricks(status):
        return machine_of_status(status, path.name)
    if _TOML_LINE.search(text):
        return read_machine_toml(path)  # which says what is wrong with it
    raise InputError(f"{path} is no topology", _GIVE)


def _is_toml(text: str) -> bool:
    if len(text) > MAX_TOML:
        return False
    try:
        return bool(parse_toml(text))
    except (NotToml, RecursionError):
        return False
