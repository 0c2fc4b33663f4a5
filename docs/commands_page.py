"""The reference of commands, from what each says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from tracekit.cli import app

_HEAD = """# Commands

This page lists every command with its arguments and options, as `--help` prints them. All commands
that print a table share the options of the panels *Rows* and *Output*; the page lists these only
once. `docs/generate.py` writes this page.
"""
_SHARED = ("Rows", "Output")


def commands_page() -> str:
    """Return the page."""
    group = typer.main.get_command(app)
    commands = list(_commands(group, "tracekit"))
    shared = {
        option.name: option
        for _, command in commands
        for option in command.params
        if _panel(option) in _SHARED
    }
    return "\n".join(
        [
            _HEAD,
            "## Rows and output\n",
            *_options(shared.values()),
            *(line for name, command in commands for line in _section(name, command)),
        ]
    )


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _section(name: str, command: Any) -> Iterator[str]:
    yield f"\n## {name}\n"
    yield _text(command.help or "")
    yield ""
    yield from _options(o for o in command.params if _panel(o) not in _SHARED)
    examples = (command.epilog or "").partition("\n")[2]
    if examples:
        yield "\n```sh\n" + "\n".join(line.strip() for line in examples.splitlines()) + "\n```"


def _options(parameters: Any) -> Iterator[str]:
    shown = [p for p in parameters if p.name != "help" and not getattr(p, "hidden", False)]
    if shown:
        yield "| option | meaning |"
        yield "| --- | --- |"
    for parameter in shown:
        yield f"| {_name(parameter)} | {_text(getattr(parameter, 'help', None) or '-')} |"


def _name(parameter: Any) -> str:
    value = parameter.metavar or ""
    if parameter.param_type_name == "argument":
        return f"`{value or parameter.name.upper()}`"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{names}{f' {value}' if value and not parameter.is_flag else ''}`"


def _panel(parameter: Any) -> str | None:
    return getattr(parameter, "rich_help_panel", None)


def _text(text: str) -> str:
    # Paragraphs stay; bars and angle brackets are no columns and no HTML.
    return text.replace("\f", "").strip().replace("|", "\\|").replace("<", "&lt;")
