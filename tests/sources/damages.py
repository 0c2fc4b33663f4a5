"""What files from anywhere may be like: one change, or several, of a good file, by a seed."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from quick_sqlite import writing

BITS = 8
ODD = (
    None, -1, 0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63),
    1.5, -0.0, 1e300, 2.0**53, float("inf"), "", "7", " 7", "seven", "1e3", "9" * 30, b"", b"\xff",
    b"7", "\x00", "x" * 3000, "ünï\u202e",
)  # fmt: skip
"""Values that a column of numbers or texts may hold in a file that something else wrote."""


def damage_bytes(content: bytes, pick: random.Random, page: int = 4096) -> bytes:
    """Flip bits, overwrite, swap or repeat pages, insert, or cut the end off."""
    changed = bytearray(content)
    at = pick.randrange(len(changed))
    match pick.randrange(7):
        case 0:
            for _ in range(pick.choice((1, 1, 4, 64))):
                changed[pick.randrange(len(changed))] ^= 1 << pick.randrange(BITS)
        case 1:
            noise = pick.randbytes(pick.choice((1, 2, 9, 100)))
            changed[at : at + len(noise)] = noise[: len(changed) - at]
        case 2:
            one, other = (pick.randrange(len(changed) // page + 1) * page for _ in range(2))
            kept = changed[one : one + page]
            changed[one : one + page] = changed[other : other + page]
            changed[other : other + page] = kept
        case 3:
            del changed[at:]
        case 4:
            begin = at // page * page
            changed[begin : begin + page] = bytes(len(changed[begin : begin + page]))
        case 5:
            changed[at:at] = pick.choice((b"\xff\xfe", b"\x00", b'"', b"\n", b"\xc3", b",", b"{"))
        case 6:
            del changed[at : at + pick.choice((1, 3, 200))]
    return bytes(changed)


def damage_file(path: Path, pick: random.Random) -> str:
    """Damage the bytes of a file."""
    path.write_bytes(damage_bytes(path.read_bytes(), pick))
    return "bytes"


def damage_varints(path: Path, pick: random.Random) -> str:
    """Change some bytes, but for the bit that says whether a number goes on."""
    content = bytearray(path.read_bytes())
    for _ in range(pick.choice((1, 1, 2, 4))):
        content[pick.randrange(len(content))] ^= 1 << pick.randrange(7)
    path.write_bytes(content)
    return "numbers"


# --- tables of SQLite


def damage_tables(path: Path, pick: random.Random, tables: tuple[str, ...]) -> str:
    """Change rows, columns or tables of a database, and say how."""
    kind = pick.choice(tuple(SQL))
    with writing(path, isolation_level=None) as db:
        db.create_function("chance", 0, lambda: pick.randrange(10_000))
        held = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = pick.choice([each for each in tables if each in held])
        with suppress(sqlite3.Error):  # a table that cannot be changed so stays as it was
            SQL[kind](db, table, pick)
    return kind


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def _some(pick: random.Random) -> str:
    return f"WHERE chance() % {pick.choice((1, 2, 7, 30))} = 0"


def _values(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    column = pick.choice(_columns(db, table))
    if pick.random() < 0.5:  # as other tools write it: without types
        _loosen(db, table)
    db.execute(f'UPDATE "{table}" SET "{column}" = ? {_some(pick)}', [pick.choice(ODD)])


def _loosen(db: sqlite3.Connection, table: str) -> None:
    names = ", ".join(f'"{name}"' for name in _columns(db, table))
    rows = db.execute(f'SELECT {names} FROM "{table}"').fetchall()
    db.execute(f'DROP TABLE "{table}"')
    db.execute(f'CREATE TABLE "{table}" ({names})')
    marks = ", ".join("?" * len(names.split(",")))
    db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)


def _times(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    """Let ranges cross, run backward, or never end."""
    change = pick.choice(
        (
            "end = NULL", "end = start - 5", "end = end + chance()", "start = start - chance()",
            "end = start", "start = NULL", "start = end, end = start",
            "start = start * -1, end = end * -1", "end = 9223372036854775807",
            "start = -9223372036854775808", "start = 0, end = 0",
        )
    )  # fmt: skip
    db.execute(f'UPDATE "{table}" SET {change} {_some(pick)}')


def _repeat(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    _loosen(db, table)
    db.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}" {_some(pick)}')


def _drop_column(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{pick.choice(_columns(db, table))}"')


def _swap_columns(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    one, other = pick.choice(_columns(db, table)), pick.choice(_columns(db, table))
    db.execute(f'UPDATE "{table}" SET "{one}" = "{other}", "{other}" = "{one}"')


def _swap_tables(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    held = [t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    other = pick.choice(held)
    db.execute(f'ALTER TABLE "{table}" RENAME TO between')
    db.execute(f'ALTER TABLE "{other}" RENAME TO "{table}"')
    db.execute(f'ALTER TABLE between RENAME TO "{other}"')


def _view(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    db.execute(f'ALTER TABLE "{table}" RENAME TO kept')
    endless = " UNION ALL SELECT * FROM kept, kept" if pick.random() < 0.2 else ""
    db.execute(f'CREATE VIEW "{table}" AS SELECT * FROM kept{endless}')


def _trigger(db: sqlite3.Connection, table: str, _: random.Random) -> None:
    db.execute(f'CREATE TRIGGER t AFTER INSERT ON "{table}" BEGIN DELETE FROM "{table}"; END')


def _generated(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    """Let a column that is read be computed from another one."""
    names = _columns(db, table)
    made = pick.choice(names)
    rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
    at = names.index(made)
    kind = pick.choice(("STORED", "VIRTUAL"))
    source = pick.choice([name for name in names if name != made] or ["1"])
    declared = [
        f'"{name}" AS ("{source}") {kind}' if name == made else f'"{name}"' for name in names
    ]
    db.execute(f'DROP TABLE "{table}"')
    db.execute(f'CREATE TABLE "{table}" ({", ".join(declared)})')
    others = ", ".join(f'"{name}"' for name in names if name != made)
    marks = ", ".join("?" * (len(names) - 1))
    kept = [row[:at] + row[at + 1 :] for row in rows]
    db.executemany(f'INSERT INTO "{table}" ({others}) VALUES ({marks})', kept)


def _bad_text(db: sqlite3.Connection, table: str, pick: random.Random) -> None:
    texts = [c for c in _columns(db, table) if c in ("value", "text", "name")]
    column = pick.choice(texts or _columns(db, table))
    raw = pick.choice(("C3", "FF00FF", "636166E9", "EDA080", "00"))
    db.execute(f'UPDATE "{table}" SET "{column}" = CAST(x\'{raw}\' AS TEXT) {_some(pick)}')


SQL: dict[str, Callable[[sqlite3.Connection, str, random.Random], None]] = {
    "odd values": _values,
    "odd times": _times,
    "rows repeated": _repeat,
    "rows removed": lambda db, table, pick: db.execute(f'DELETE FROM "{table}" {_some(pick)}'),
    "a table dropped": lambda db, table, _: db.execute(f'DROP TABLE "{table}"'),
    "a column dropped": _drop_column,
    "columns swapped": _swap_columns,
    "tables swapped": _swap_tables,
    "a view": _view,
    "a trigger": _trigger,
    "a generated column": _generated,
    "invalid UTF-8": _bad_text,
}  # fmt: skip


# --- JSON

ODD_JSON = (
    None, True, -1, 0, 0.5, 1e300, 2**31, 2**63, -(2**63), 10**30, "", "7", "seven", "1.5e3", [],
    [1], {}, {"a": [1]}, float("nan"), float("-inf"), "\ud800", "ünï", "x" * 3000,
)  # fmt: skip


def damage_json(path: Path, pick: random.Random) -> str:
    """Change events of a trace of PyTorch, and say how."""
    whole = json.loads(path.read_text())
    events: list[Any] = whole["traceEvents"]
    kind = pick.choice(("fields", "arguments", "removed", "events", "repeated", "around", "times"))
    for _ in range(pick.choice((1, 3, len(events)))):
        at = pick.randrange(len(events))
        event = events[at]
        if not isinstance(event, dict):
            continue
        match kind:
            case "fields":
                event[pick.choice(("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"))] = (
                    pick.choice(ODD_JSON)
                )
            case "arguments" if isinstance(event.get("args"), dict):
                event["args"][
                    pick.choice(
                        ("device", "stream", "correlation", "bytes", "Sequence number", "grid")
                    )
                ] = pick.choice(ODD_JSON)
            case "removed":
                event.pop(pick.choice(list(event) or ["ph"]), None)
            case "events":
                events[at] = pick.choice(ODD_JSON)
            case "repeated":
                events.insert(at, dict(event))
            case "times":
                event[pick.choice(("ts", "dur"))] = pick.choice(
                    (-5, -0.001, 1e-3, 9e15, 12.3456, "12.5", 2**53, -(2**60), 1e22)
                )
    if kind == "around":
        names = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds")
        whole[pick.choice((*names, "traceName"))] = pick.choice(ODD_JSON)
    path.write_text(json.dumps(whole))
    return f"JSON: {kind}"


def damage_tree(path: Path, pick: random.Random) -> str:
    """Change values of rocprofv3's JSON, most often of its records, and say how."""
    whole = json.loads(path.read_text())
    (process,) = whole["rocprofiler-sdk-tool"]
    # A document without its tables of names means nothing to the plain reader.
    parts = [process["buffer_records"]] * (pick.random() < 0.8) or [process]
    places = [*_places(parts)]
    kind = pick.choice(("values", "removed", "repeated"))
    for _ in range(pick.choice((1, 3, 20))):
        held, key = pick.choice(places)
        with suppress(LookupError):  # it is gone already
            match kind:
                case "values":
                    held[key] = pick.choice(ODD_JSON)
                case "removed":
                    del held[key]
                case "repeated" if isinstance(held, list):
                    held.insert(key, held[key])
    path.write_text(json.dumps(whole))
    return f"tree: {kind}"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


# --- lines of text


def damage_lines(path: Path, pick: random.Random) -> str:
    """Change, move, repeat or drop lines and cells of a text."""
    lines = path.read_text().split("\n")
    at, other = (pick.randrange(len(lines)) for _ in range(2))
    kind = pick.choice(("moved", "repeated", "dropped", "cells", "words", "cut", "long"))
    match kind:
        case "moved":
            lines[at], lines[other] = lines[other], lines[at]
        case "repeated":
            lines.insert(other, lines[at])
        case "dropped":
            del lines[at]
        case "cells":
            cells = lines[at].split(",")
            odd = (str(each) for each in (*ODD, "nan", '"', "1e5", "0x10", "-0.0"))
            cells[pick.randrange(len(cells))] = pick.choice(list(odd))
            lines[at] = ",".join(cells)
        case "words":
            words = lines[at].split(" ")
            words[pick.randrange(len(words))] = pick.choice(("", "-1", "NV99", "GPU0", "[0]", "x"))
            lines[at] = " ".join(words)
        case "cut":
            lines = lines[: max(1, at)]
        case "long":
            lines[at] = lines[at] * 200
    path.write_text("\n".join(lines), errors="surrogateescape")
    return f"lines {kind}"


# --- matrices of `nvidia-smi topo -m`

CELLS = ("NV1", "NV2", "NV4", "NV12", "NV18", "PIX", "PSB", "PXB", "PHB", "NODE", "SYS", "SOC", "X")


def damage_matrix(path: Path, pick: random.Random) -> str:
    """Change a matrix as a whole, so that it may still be one: both ways, rows with columns."""
    rows = [line.split("\t") for line in path.read_text().split("\n")]
    head = next((n for n, row in enumerate(rows) if "GPU0" in row[1:]), None)
    devices = [name for name in rows[head][1:] if name[-1:].isdigit()] if head is not None else []
    if head is None or len(rows) <= head + len(devices) or len(devices) < 2:
        return "no matrix any more"
    one, other = pick.sample(range(len(devices)), 2)
    kind = pick.choice(tuple(MATRIX))
    with suppress(IndexError):  # a row that was damaged before
        MATRIX[kind](rows[head : head + 1 + len(devices)], one + 1, other + 1, pick)
    joint = "\t" if kind != "tabs lost" else "    "
    kept = [row for row in rows if row != ["removed"]]
    path.write_text("\n".join(joint.join(row) for row in kept))
    return f"matrix: {kind}"


Table = list[list[str]]


def _pair(table: Table, one: int, other: int, pick: random.Random) -> None:
    table[one][other] = table[other][one] = pick.choice(CELLS)


def _one_way(table: Table, one: int, other: int, pick: random.Random) -> None:
    table[one][other] = pick.choice(CELLS)


def _columns_moved(table: Table, one: int, other: int, _: random.Random) -> None:
    for row in table:
        row[one], row[other] = row[other], row[one]


def _rows_moved(table: Table, one: int, other: int, _: random.Random) -> None:
    table[one][:], table[other][:] = table[other][:], table[one][:]


def _device_removed(table: Table, one: int, _: int, pick: random.Random) -> None:
    for row in table:
        del row[one]
    table[one][:] = ["removed"] if pick.random() < 0.8 else table[one]


def _renamed(table: Table, one: int, other: int, pick: random.Random) -> None:
    name = pick.choice(("GPU9", "GPU2000", "NIC0", "mlx5_9", table[0][other]))
    table[0][one] = table[one][0] = name


def _beside(table: Table, one: int, _: int, pick: random.Random) -> None:
    table[one][len(table)] = pick.choice(("0-3", "N/A", "", "4,5", "7", "x", "99999", "-1"))


MATRIX: dict[str, Callable[[Table, int, int, random.Random], None]] = {
    "a pair": _pair,
    "one way": _one_way,
    "columns moved with their names": _columns_moved,
    "rows moved": _rows_moved,
    "a device removed": _device_removed,
    "a device renamed": _renamed,
    "beside a row": _beside,
    "tabs lost": lambda *_: None,
}
