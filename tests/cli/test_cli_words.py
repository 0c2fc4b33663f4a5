"""Words that commands read themselves are read as typer reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import typer

from tracekit.cli import app
from tracekit.cli._guard import Command, Group

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = (
    "stage",
    "json",
    "mean",
    "JSON",
    "3",
    "-1",
    "",
    " a ",
    "é",
    "\udcff",
    "there",
    "closed",
    ".",
)


def _commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), group
    for name, each in getattr(group, "commands", {}).items():
        yield from _commands(each, *path, name)


COMMANDS = dict(_commands(typer.main.get_command(app)))


def _outcome(read: Any, value: object) -> tuple[object, ...]:
    try:
        found = read(value)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is compared
        return type(error), str(error)
    # Of what may be given several times typer makes a list, whatever it is until then.
    return (list, *found) if isinstance(found, (list, tuple)) else (type(found), found)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_read_is_what_typer_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    (tmp_path / "closed").touch(mode=0)
    command = COMMANDS[name]
    assert isinstance(command, (Command, Group))
    context = typer.Context(command)
    for each in command.get_params(context):
        if each.callback:  # as of --help, which ends the program
            continue
        values: list[object] = [None, each.default]
        if each.multiple or each.nargs == -1:
            values += [[], ["a", "b"], list(WORDS), *([word] for word in WORDS)]
        else:
            values += WORDS
        for value in values:
            by_typer = _outcome(lambda v, p=each: type(p).process_value(p, context, v), value)
            assert _outcome(lambda v, p=each: p.process_value(context, v), value) == by_typer
