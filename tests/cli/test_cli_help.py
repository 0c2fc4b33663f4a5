from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from cli_helpers import ROOT, environment, tracekit

from tracekit import __version__
from tracekit.cli import app
from tracekit.cli._app import _MODULES, _home, in_order
from tracekit.model import DERIVED, TABLES
from tracekit.runs import DECLARED

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = list(commands(typer.main.get_command(app)))
BY_PATH = dict(ALL)
EXAMPLES = [
    line.strip()
    for _, command in ALL
    for line in (command.epilog or "").splitlines()
    if line.startswith("  ")
]


def test_every_question_and_every_module_of_commands_is_registered() -> None:
    paths = [" ".join(path) for path, _ in ALL]
    assert len(set(paths)) == len(paths)
    assert {name.replace("_", "-") for name in DECLARED} <= set(paths)
    modules = (ROOT / "tracekit" / "cli").glob("_*.py")
    homes = {file.stem[1:] for file in modules if "\n@command(" in file.read_text("utf-8")}
    assert homes <= {*in_order(), *(each.rpartition("._")[2] for each in _MODULES.values())}


def test_commands_stand_in_the_order_in_which_they_are_registered() -> None:
    own = [_home(each) for each in app.registered_commands]
    assert list(dict.fromkeys(own)) == [name for name in in_order() if name in own]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(p) or "tracekit" for p, _ in ALL])
def test_every_command_is_documented(path: tuple[str, ...], command: Any) -> None:
    assert command.help, "say what it does"
    assert "\n" not in command.help.replace("\n\n", ""), "a terminal of 80 columns breaks it again"
    assert (command.epilog or "").startswith("Example"), "show how it is used"
    undocumented = [p.name for p in command.params if not getattr(p, "help", None)]
    assert not undocumented
    shown = tracekit(*path, "--help")
    assert shown.exit_code == 0
    assert all(line.strip() in shown.stdout for line in command.epilog.splitlines())


STUDIES = re.findall(
    r"^\|.*\| `(tracekit .+)` \|$",
    (ROOT / "docs" / "evidence" / "studies.md").read_text("utf-8"),
    re.MULTILINE,
)


def test_the_page_of_studies_names_commands() -> None:
    assert len(STUDIES) > 40


@pytest.mark.parametrize("line", [*EXAMPLES, *STUDIES])
def test_every_example_is_a_command_that_exists(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "tracekit"
    path: tuple[str, ...] = ()
    if (two := " ".join(words[:2]),) in BY_PATH:
        path, words = (two,), words[2:]
    while words and (*path, words[0]) in BY_PATH:
        path = (*path, words.pop(0))
    # Fails on an option or a number of arguments that the command does not take.
    BY_PATH[path].make_context("tracekit", words)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(p) or "tracekit" for p, _ in ALL])
def test_what_lists_has_every_format(path: tuple[str, ...], command: Any) -> None:
    options = {option for p in command.params for option in p.opts}
    if path[-1:] in {
        ("rename",),
        ("remove",),
        ("gc",),
        ("share",),
        ("runs",),
        ("topology",),
        ("import",),
        ("report",),
        ("view",),
        ("export",),
        (),
    }:
        assert "--format" not in options
    else:
        assert {"--format", "--output"} <= options
        # Which open no run.
        without = {("topology", "list"), ("straggler-cost",)}
        assert ("--store" in options) == (path not in without)


def test_the_help_of_sql_names_every_table() -> None:
    told = " ".join(tracekit("sql", "--help").stdout.split())
    named = re.findall(r"\w+", told.partition("The tables are")[2].partition(".")[0])
    assert {*TABLES, *DERIVED} <= set(named)


def test_version() -> None:
    assert tracekit("--version").stdout == f"tracekit {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["brakdown"], "No such command 'brakdown'. Did you mean 'breakdown'?"),
        (["breakdown", "--bye", "stage"], "No such option: --bye"),
        (["breakdown", "--format", "xml"], "'xml' is not one of"),
        (["breakdown", "--skip", "-1"], "cannot read the number of iterations '-1'"),
        (["ingest"], "Missing argument 'FILE'"),
        (["runs", "lst"], "Did you mean 'list'?"),
    ],
)
def test_wrong_usage_exits_with_2(words: list[str], message: str) -> None:
    done = tracekit(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh Python has loaded after `code`."""
    script = f"import sys\n{code}\nprint('\\n' + ' '.join(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    return set(done.stdout.splitlines()[-1].split())


SHOW_HELP = """
import tracekit.cli
sys.argv = ["tracekit", "--help"]
try:
    tracekit.cli.main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize("code", ["from tracekit.cli import app", SHOW_HELP], ids=["all", "help"])
def test_help_waits_for_no_heavy_module(code: str) -> None:
    loaded = loaded_by(code)
    assert "typer" in loaded
    assert not loaded & {"polars", "sqlalchemy", "adbc_driver_sqlite", "plotly", "numpy", "sqlite3"}


def test_python_m_tracekit() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "--version"],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    assert done.stdout == f"tracekit {__version__}\n"
