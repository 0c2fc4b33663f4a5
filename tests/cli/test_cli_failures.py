from __future__ import annotations

import ast
import itertools
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

import pytest
from cli_helpers import SAMPLE, command, environment, in_process, tracekit
from effort import by_day
from polars.exceptions import PanicException

from tracekit.analysis.facts import KEYS
from tracekit.cli import main
from tracekit.cli._options import complete_keys, complete_run
from tracekit.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.errors import TracekitError


def raising(error: BaseException | type[BaseException]) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StoreError("the store is \x1b[31mred", "wash it"), 2, "the store is ␛[31mred: wash it"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "x/y"), 2, "x/y: Permission denied"),
        (OSError("odd"), 2, "odd"),
        # As where an interrupt comes while polars calls Python.
        (
            PanicException("an `Err` value: PyErr { type: <class 'KeyboardInterrupt'> }"),
            130,
            "interrupted",
        ),
    ],
    ids=["tracekit", "interrupt", "file", "system", "interrupted polars"],
)
def test_a_failure_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    monkeypatch.setattr("tracekit.open", lambda *_, **__: raising(error), raising=False)
    done = tracekit("breakdown")
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"tracekit: {message}\n")


def test_a_figure_that_cannot_be_written_is_told_before_any_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracekit.open", lambda *_, **__: raising(AssertionError), raising=False)
    monkeypatch.setitem(sys.modules, "kaleido", None)
    done = tracekit("breakdown", "--figure", "step.svg")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "without the package kaleido" in done.stderr


def test_where_polars_breaks_down_that_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = PanicException("index out of bounds")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tracekit.open", lambda *_, **__: raising(error), raising=False)
    done = tracekit("breakdown")
    assert done.exit_code == 70
    assert "Traceback" not in done.stderr


def test_an_error_says_which_code_it_exits_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        error: TracekitError = StoreError("a check failed")
        error.exit_code = 1
        raise error

    monkeypatch.setattr("tracekit.open", fail, raising=False)
    assert tracekit("breakdown").exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "output_format", by_day(["table", "csv", "json", "parquet"], "table", "parquet")
)
def test_a_reader_that_goes_away_is_no_error(stored: Path, output_format: str) -> None:
    # More than a pipe holds, so that writing meets the closed end.
    query = "SELECT a.name FROM calls AS a CROSS JOIN devices AS b"
    with subprocess.Popen(
        command("sql", "@latest", query, "--format", output_format),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--timeout", "0.3", "took longer than 0.3 s: select less, or allow more with --timeout"),
        ("--memory", "500MB", "took more memory than 500,000,000 bytes: select less, or"),
    ],
)
def test_a_query_that_takes_too_much_is_given_up(
    stored: Path, option: str, value: str, message: str
) -> None:
    crossed = "SELECT a.name FROM calls a CROSS JOIN calls b CROSS JOIN ops c ORDER BY b.end"
    done = in_process("sql", "@latest", crossed, option, value)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("tracekit: the query took")
    assert message in done.stderr


WAITING = """
import signal, sys, time

def wait(*_, **__):
    print("waiting", flush=True)
    time.sleep(60)

class Slow:  # a disk from which one module takes its time
    def find_spec(self, name, *_):
        return wait() if name == MODULE else None

# A shell lets what it runs in the background ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
MODULE = sys.argv.pop()
sys.meta_path.insert(0, Slow())
from tracekit.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "typer",
        "polars",
        pytest.param("tracekit.cli._breakdown", marks=pytest.mark.nightly),
        pytest.param("tracekit._run", marks=pytest.mark.nightly),
    ],
)
def test_an_interrupt_at_any_moment_stops_with_one_line(stored: Path, module: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "breakdown", "ddp", module],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, b"tracekit: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("stderr", ["io.StringIO()", "None", "closed"])
def test_the_command_line_runs_where_stderr_has_no_number(stderr: str) -> None:
    program = f"""
import io, signal, sys, threading
closed = io.StringIO()
closed.close()
sys.stderr = {stderr}
from tracekit.cli import main
sys.argv = ["tracekit", "--version"]
codes = []
def run():
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
run()
heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
there = threading.Thread(target=run)
there.start()
there.join()
print(codes, heard)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(),
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[0, 0] True"


STREAMS = ("io.StringIO()", "Notebook()", "None", "closed")


@pytest.mark.slow
def test_commands_run_where_streams_are_those_of_a_notebook_or_a_harness(tmp_path: Path) -> None:
    program = f"""
import io, os, sys
class Notebook(io.TextIOBase):
    encoding, text = "UTF-8", ""
    def write(self, text):
        self.text += text
        return len(text)
    getvalue = lambda self: self.text
closed = io.StringIO()
closed.close()
from tracekit.cli import main
before = sys.stdout
for stream in {STREAMS!r}:
    os.environ["TRACEKIT_STORE"] = stream
    for words in {[tuple(map(str, each)) for each in STAND_IN_COMMANDS]!r}:
        sys.argv = ["tracekit", *words]
        sys.stdout, sys.stderr = out, err = eval(stream), eval(stream)
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        sys.stdout = before
        told = [each.getvalue() if each and each is not closed else None for each in (out, err)]
        print([words[0], code, *told])
print(os.fstat(2).st_rdev == os.stat(os.devnull).st_rdev)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=environment(), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    *told, native = done.stdout.splitlines()
    assert native == "False"  # what native code says still goes where it went
    asked = itertools.product(STREAMS, STAND_IN_COMMANDS.items())
    for line, (stream, (words, (code, out, err))) in zip(told, asked, strict=True):
        whole = stream in ("io.StringIO()", "Notebook()")
        found = ast.literal_eval(line)
        assert found[:2] == [words[0], code], line
        assert (out in found[2] and err in found[3]) if whole else found[2:] == [None, None], line


STAND_IN_COMMANDS = {
    ("ingest", SAMPLE): (0, "ddp_4gpu", ""),
    ("breakdown", "ddp_4gpu"): (0, "time by stage", ""),
    ("runs", "list", "--format", "csv"): (0, "ddp_4gpu", ""),
    ("breakdown", "none"): (2, "", "no run 'none'"),
    ("breakdown", "ddp_4gpu", "--format", "parquet"): (2, "", "parquet is binary"),
    ("breakdown", "--no-such"): (2, "", "No such option"),
}
"""By words: the exit code, and what is part of stdout and stderr."""


def test_an_interrupt_while_a_class_is_made_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python says that an error came of calling a method of what the class holds."""
    error = RuntimeError("Error calling __set_name__")
    error.__cause__ = KeyboardInterrupt()
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("tracekit.cli._app.run", lambda: raising(error))
    with pytest.raises(SystemExit) as ended:
        main()
    signal.signal(signal.SIGINT, before)
    assert (ended.value.code, capsys.readouterr().err) == (130, "tracekit: interrupted\n")
    monkeypatch.setattr("tracekit.open", lambda *_, **__: raising(error), raising=False)
    assert tracekit("breakdown").stderr == "tracekit: interrupted\n"


def test_an_interrupt_before_the_command_is_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.core.TyperGroup.parse_args", lambda *_: raising(KeyboardInterrupt))
    done = tracekit("breakdown")
    assert (done.exit_code, done.stderr) == (130, "tracekit: interrupted\n")


def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = tracekit("ingest", SAMPLE, "--store", tmp_path / "file" / "store")
    assert done.exit_code == 2
    assert done.stderr.startswith("tracekit: ")
    assert len(done.stderr.splitlines()) == 1
    assert "file/store" in done.stderr


def test_completion_proposes_runs_and_files(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "ddp.sqlite").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.sqlite").touch()
    assert list(complete_run("d")) == ["ddp", "ddp.sqlite"]
    assert list(complete_run("@")) == ["@latest"]
    assert list(complete_run("sub/")) == ["sub/x.sqlite"]
    assert list(complete_run("none/")) == []


def test_completion_without_a_store_that_works(store: Path) -> None:
    store.mkdir()
    (store / "catalogue.sqlite").write_text("not a database")
    assert list(complete_run("@")) == ["@latest"]


def test_completion_of_keys() -> None:
    assert list(complete_keys(KEYS, "s")) == ["stage", "stream"]
    assert list(complete_keys(KEYS, "stage,s")) == ["stage,stream"]
    assert list(complete_keys(KEYS, "stage,de")) == ["stage,device"]


@pytest.mark.slow
def test_a_shell_gets_its_completions(stored: Path) -> None:
    done = subprocess.run(
        command(),
        capture_output=True,
        text=True,
        check=False,
        env=environment(
            _TRACEKIT_COMPLETE="complete_bash", COMP_WORDS="tracekit breakdown dd", COMP_CWORD="2"
        ),
    )
    assert done.stdout.split() == ["ddp"]


def test_what_nobody_expected_is_told_as_a_fault_of_ours(
    stored: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a column")

    monkeypatch.setattr("tracekit.analysis.breakdowns._breakdown.breakdown", fail, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    done = tracekit("breakdown", "ddp")
    assert done.exit_code == 70
    assert "this is a fault of tracekit (KeyError: 'a column')" in done.stderr
    (details,) = tmp_path.glob("tracekit-fault-*.txt")
    assert str(details) in done.stderr
    assert "Traceback" in details.read_text()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("what", ["values", "schema"])
def test_a_part_that_a_disk_has_changed_behind_our_back_is_told(stored: Path, what: str) -> None:
    part = min(stored.rglob("ops/*.parquet"))
    before, content = part.stat(), bytearray(part.read_bytes())
    schema = content.index(b"ARROW:schema") + 20
    begin, end = {"values": (4, len(content) // 2), "schema": (schema, schema + 40)}[what]
    content[begin:end] = bytes(end - begin)
    part.write_bytes(content)
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a disk that forgets does
    done = tracekit("breakdown", "ddp", "--by", "kernel")
    assert done.exit_code == 2, done.stderr
    assert "a part of the store is damaged" in done.stderr
    assert "`tracekit runs check` lists it" in done.stderr
    assert "ddp" in tracekit("runs", "check").stdout


@pytest.mark.parametrize("words", [["breakdown", "ddp", "--rules"], ["record", "--study"]])
def test_toml_that_is_nested_too_deeply(stored: Path, tmp_path: Path, words: list[str]) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text("version = 1\na = " + "[" * 5000 + "]" * 5000)
    done = tracekit(*words, deep)
    assert done.exit_code == 2
    assert "nested too deeply" in done.stderr


def test_an_event_that_is_none_costs_no_other(store: Path, tmp_path: Path) -> None:
    kernel = {
        "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0,
        "args": {"device": 0, "stream": 7, "correlation": 1},
    }  # fmt: skip
    file = tmp_path / "trace.json"
    document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": [[1, 2], kernel]}
    file.write_text(json.dumps(document))
    assert tracekit("ingest", file).exit_code == 0
