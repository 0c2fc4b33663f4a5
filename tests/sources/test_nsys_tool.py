"""Reports that an nsys exports: what is asked of it, and what is said when it fails."""

from __future__ import annotations

import ast
import os
import re
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from nsys_builder import NsysBuilder, load_schema, schema_versions

import tracekit as tk
from tracekit.errors import InputError, MissingDataError, UnsupportedTraceError
from tracekit.sources import _nsys_tool, nsys, open_report, read
from tracekit.sources._nsys_tool import REPORT_MAGIC, TABLES, VARIABLE, export_report
from tracekit.support.spool import Workspace

HELP = "--lazy --tables"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "reports" / "-my report.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(REPORT_MAGIC + b" 1..\n\x0b")
    return path


@pytest.fixture
def tool(tmp_path: Path) -> Callable[..., str]:
    """Make a program that takes the place of nsys: it notes its arguments and runs `body`."""

    def make(body: str, known: str = HELP) -> str:
        path = tmp_path / "my nsys"
        path.write_text(
            "#!/bin/sh\n"
            f'if [ "$2" = --help ]; then echo "{known}"; exit; fi\n'
            f'printf "%s\\n" "$@" > {shlex.quote(str(tmp_path / "asked"))}\n'
            'for each in "$@"; do\n'
            'case "$each" in --output=*) out="${each#--output=}";; esac; done\n'
            f"{body}\n"
        )
        path.chmod(0o755)
        return str(path)

    return make


def _export(path: Path, *, gpu: bool = True) -> Path:
    with NsysBuilder(path, schema="3.11.1") as export:
        if gpu:
            export.launch(10, 20, 30, name="k")
        export.insert(
            "META_DATA_EXPORT", name="EXPORT_PARAM_TABLES_TO_EXPORT", value="StringIds NVTX_.*"
        )
    return path


@pytest.fixture
def copies(tmp_path: Path, tool: Callable[..., str]) -> str:
    """A program that gives an export made before."""
    return tool(f'cp {_export(tmp_path / "made.sqlite")} "$out"')


class TestWhatIsAsked:
    def test_a_list_of_arguments_and_no_shell(self, report, tmp_path, copies):
        (tmp_path / "out").mkdir()
        made = export_report(report, tmp_path / "out", copies)
        assert made.parent == tmp_path / "out"
        assert (tmp_path / "asked").read_text().splitlines() == [
            "export",
            "--type=sqlite",
            f"--output={made}",
            "--lazy=true",
            "--tables=" + ",".join(TABLES),
            str(report),
        ]

    def test_only_options_that_it_has(self, report, tmp_path, tool):
        program = tool(f'cp {_export(tmp_path / "made.sqlite")} "$out"', "--include-blobs")
        export_report(report, tmp_path, program)
        asked = (tmp_path / "asked").read_text().splitlines()
        assert asked[3:-1] == ["--include-blobs=true"]

    def test_a_relative_path_that_looks_like_an_option(self, report, tmp_path, copies, monkeypatch):
        monkeypatch.chdir(report.parent)
        export_report(Path(report.name), tmp_path, copies)
        assert (tmp_path / "asked").read_text().splitlines()[-1] == str(report)

    def test_all_tables_that_are_read(self):
        """Names of tables in the reader that any schema has are among those that are exported."""
        tables = {table for version in schema_versions() for table in load_schema(version).tables}
        package = Path(nsys.__file__).parent
        named = {
            node.value
            for file in package.glob("*.py")
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        read_tables = tables & named
        assert {"StringIds", "NVTX_EVENTS", "MPI_RANKS", "GPU_METRICS"} <= read_tables
        pattern = re.compile("|".join(TABLES))
        assert {table for table in read_tables if not pattern.fullmatch(table)} == set()
        assert not pattern.fullmatch("OSRT_CALLCHAINS")


class TestWhatComesOfIt:
    def test_the_tables_of_the_report(self, report, copies):
        recording = open_report(report, Workspace(), nsys_tool=copies)
        reports = recording.tables["reports"]
        size = report.stat().st_size
        assert reports.select("file", "format", "size").row(0) == (
            report.name, "nsys report", size
        )  # fmt: skip
        assert recording.trace().read("ops").height == 1
        assert not any("some tables only" in each for each in recording.warnings)

    def test_a_run(self, report, tmp_path, copies):
        store = tmp_path / "store"
        run, _ = tk.ingest(report, store=store, nsys=copies)
        assert run.name == "my report"
        assert run.record.files == (report.name,)
        assert tk.open(report, store=store).id == run.id
        assert not list(store.rglob("*report.sqlite"))

    def test_the_environment_names_one(self, report, copies, monkeypatch):
        monkeypatch.setenv(VARIABLE, copies)
        assert read(report).read("ops").height == 1

    @pytest.mark.slow
    def test_several_in_processes(self, report, tmp_path, copies):
        other = report.with_name("other.qdrep")
        other.write_bytes(report.read_bytes() + b"other")
        run, _ = tk.ingest([report, other], store=tmp_path / "store", nsys=copies, processes=2)
        assert run.table("ops").collect().height == 2

    def test_progress(self, report, tmp_path, tool):
        made = _export(tmp_path / "made.sqlite")
        says = "printf '[1%%]'; sleep .1; printf '[=4'; sleep .1; printf '2%%]'; sleep .1"
        seen = []
        program = tool(f'{says}; cp {made} "$out"')
        export_report(report, tmp_path, program, lambda *step: seen.append(step))
        assert {step for step, *_ in seen} == {"export with nsys"}
        done = [done for _, done, _ in seen]
        assert done == sorted(done)
        assert {0, 1, 42, 100} <= set(done)


def _comes_true(condition: Callable[[], bool]) -> bool:
    """Wait for a condition: what is killed takes a moment to end."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(OSError, IndexError):  # gone while it was looked at
            if condition():
                return True
        time.sleep(0.05)
    return False


class TestFailures:
    def _refused(self, report: Path, tool: str | None, says: str) -> InputError:
        with pytest.raises(InputError, match=re.escape(says)) as caught:
            open_report(report, Workspace(), nsys_tool=tool)
        assert str(report) in caught.value.what
        hint = caught.value.hint or ""
        assert f"nsys export --type sqlite {shlex.quote(str(report))}" in hint
        return caught.value

    def test_a_report_that_is_newer(self, report, tool):
        program = tool('echo "cannot read"; exit 1')
        text = Path(program).read_text()
        said = (
            'if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version VERSION"; exit; fi'
        )
        report.write_bytes(REPORT_MAGIC + b" 2025@1@1@118-251135540420v0.\n\x0b")
        newer = f"recorded by Nsight Systems 2025.1; {program} is 2023.4, which is older"
        for version, says in (("2023.4.4.54", newer), ("2025.1.0", "nsys cannot export")):
            now = said.replace("VERSION", version)
            Path(program).write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\n{now}\n"))
            self._refused(report, program, says)

    def test_no_nsys(self, report, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv(VARIABLE, raising=False)
        error = self._refused(report, None, "nsys was not found to export it")
        assert type(error) is UnsupportedTraceError

    def test_none_of_that_name(self, report, tmp_path):
        self._refused(report, str(tmp_path / "absent"), f"{tmp_path / 'absent'} was not found")

    def test_a_file_that_is_no_program(self, report, tmp_path):
        (tmp_path / "text").write_text("no program")
        (tmp_path / "text").chmod(0o755)
        self._refused(report, str(tmp_path / "text"), "does not run")

    def test_what_it_says_is_repeated_on_one_line(self, report, tool):
        program = tool("echo 'Exportation error:' >&2; echo 'bad magic.' >&2; exit 1")
        self._refused(report, program, "(Exportation error: bad magic.)")

    def test_it_says_nothing(self, report, tool):
        self._refused(report, tool("exit 3"), "nsys gave up with code 3")

    def test_it_makes_no_file(self, report, tool):
        self._refused(report, tool("exit 0"), "nsys gave up with code 0")

    def test_it_hangs_and_is_ended_with_what_it_started(self, report, tmp_path, tool, monkeypatch):
        monkeypatch.setattr(_nsys_tool, "_SILENCE", 0.5)
        monkeypatch.setattr(_nsys_tool, "_LOOK", 0.1)
        program = tool(f"sleep 100 & echo $! > {tmp_path}/pid; wait")
        self._refused(report, program, "it did nothing")
        stat = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
        assert _comes_true(lambda: not stat.exists() or stat.read_text().split()[2] == "Z")

    def test_its_export_holds_nothing(self, report, tmp_path, tool):
        empty = _export(tmp_path / "empty.sqlite", gpu=False)
        with pytest.raises(MissingDataError) as caught:
            open_report(report, Workspace(), nsys_tool=tool(f'cp {empty} "$out"'))
        assert f"no GPU work and no NVTX ranges in {report} " in caught.value.what

    def test_a_failure_leaves_nothing_in_the_store(self, report, tmp_path, tool):
        with pytest.raises(InputError, match="nsys cannot export"):
            tk.ingest(report, store=tmp_path / "store", nsys=tool("exit 1"))
        assert [p for p in (tmp_path / "store").rglob("*") if "said" in os.fspath(p)] == []
