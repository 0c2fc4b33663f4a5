"""How much is tested, who hears signals, and where the real traces lie that some tests read."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import pickle
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import effort
import polars as pl
import pytest
import typer
import typer.testing
from hypothesis import HealthCheck, settings
from polars.lazyframe.engine import _LocalEngine
from polars.lazyframe.opt_flags import QueryOptFlags
from temporary import own_folder, remove_leftovers

if TYPE_CHECKING:
    from trace_builder import TraceBuilder

    from tracekit.model import Trace
    from tracekit.store import ReportOptions
    from tracekit.store._report import ReportMade

BUNDLED = Path(__file__).resolve().parents[1] / "sample_traces"
TRACES = Path(
    os.environ.get("TRACEKIT_REAL_TRACES")
    or Path(__file__).resolve().parents[2] / "shared" / "traces"
)
SAMPLES = TRACES.parent / "formats" / "samples"

# Hundreds of tests start Python, and each such start would compile the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is collected stays to the end (see `pytest_collection_finish`).
gc.disable()

# Where several processes test, polars has one thread in each: more only wait for cores, and that
# takes time. What tests start has all; that answers do not depend on it, test_threads.py sees to.
if "PYTEST_XDIST_WORKER" in os.environ:
    # A test hands that thread hundreds of small tasks and waits for each. Where it does not at once
    # interrupt who wakes it, the two change places less often.
    with suppress(AttributeError, OSError):  # not every system has it, or lets it be chosen
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    pl.thread_pool_size()
    os.environ.pop("POLARS_MAX_THREADS", None)

ENDINGS = ("", ".sqlite", ".json.gz", ".nsys-rep", ".qdrep")
"""Those of real traces."""

LONG = ("slow", "training", "real", "nightly")
"""Marks of what is left out of a quick run."""

LONG_ROOMS = ("real", "workloads")
"""Folders that a quick run does not even look into, unless they are named; one imports PyTorch."""

ONE_PROCESS = ("tests/annotation/", "tests/workloads/")
"""Rooms that train: to import PyTorch takes seconds, and its compiler, for an optimizer, too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--effort",
        choices=effort.EFFORTS,
        default="usual",
        help="quick: two short cases of a test, few random examples; thorough: many examples",
    )
    parser.addoption(
        "--snapshots", action="store_true", help="write tests/snapshots anew, to be read"
    )


def pytest_configure(config: pytest.Config) -> None:
    effort.choose(config.getoption("effort"))
    # How long an example takes depends on what else the machine does. The same examples are tried
    # every time, so that a change fails for what it changes; a thorough run draws new ones.
    settings.register_profile(
        "tracekit",
        deadline=None,
        derandomize=config.getoption("effort") != "thorough",
        max_examples=effort.examples(100),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tracekit")
    if config.getoption("numprocesses", None) and config.getoption("effort") != "thorough":
        os.environ.setdefault("POLARS_MAX_THREADS", "1")


def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: tests wait for what they start, and for locks and signals."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_configure_node(node: Any) -> None:
    """Tell a process whether tests are handed out as below."""
    node.workerinput["one_trains"] = node.config.getoption("dist") == "loadfile"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let a process test whole files, and one of them all of `ONE_PROCESS`."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrRoom(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return ONE_PROCESS[0] if file.startswith(ONE_PROCESS) else file

        def _check_nodes_have_same_collection(self) -> bool:
            """Test whether all have the same tests beside those rooms; the longest list holds."""
            found = self.registered_collections
            self.registered_collections = {
                node: [test for test in tests if not test.startswith(ONE_PROCESS)]
                for node, tests in found.items()
            }
            is_same = bool(super()._check_nodes_have_same_collection())
            by_length = sorted(found.items(), key=lambda each: -len(each[1]))
            self.registered_collections = dict(by_length)
            return is_same

        def _assign_work_unit(self, node: Any) -> None:
            known = self.registered_collections[node]
            for scope, tests in self.workqueue.items():
                if scope != ONE_PROCESS[0] or next(iter(tests)) in known:
                    self.workqueue.move_to_end(scope, last=False)
                    super()._assign_work_unit(node)
                    return
            node.shutdown()  # what is left is another's

    return ByFileOrRoom(config, log)


def pytest_collection_finish() -> None:
    """Let what collects garbage leave alone the thousands of tests, which stay to the end."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.parent != Path(__file__).parent:
        return None
    room = f"tests/{collection_path.name}"
    if config.getoption("effort") == "quick" and collection_path.name in LONG_ROOMS:
        return None if any(room in each for each in config.args) else True
    return True if f"{room}/" in ONE_PROCESS and not _trains_here(config) else None


def _trains_here(config: pytest.Config) -> bool:
    """Test whether this is the process that tests `ONE_PROCESS`, or follows one that was killed."""
    worker = getattr(config, "workerinput", {"one_trains": False})
    if not worker["one_trains"]:
        return True
    return not 0 < int(worker["workerid"].removeprefix("gw")) < worker["workercount"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_longest_files_first(items))
    if config.getoption("effort") != "quick":
        return
    short = [item for item in items if not any(map(item.get_closest_marker, LONG))]
    kept = set(_first_and_last(short))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _longest_files_first(
    items: list[pytest.Item],
) -> Callable[[pytest.Item], tuple[int, int, Path]]:
    """Return a key of tests: files of many long tests first, then those of many tests.

    A file is tested by one process. Of a long one that comes last, the others see nothing.
    """
    tests = Counter(item.path for item in items)
    long = Counter(item.path for item in items if any(map(item.get_closest_marker, LONG)))
    return lambda item: (-long[item.path], -tests[item.path], item.path)


def _first_and_last(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return two cases of each test, as of the oldest and the newest version of nsys."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [case for cases in by_test.values() for case in (cases[0], cases[-1])]


def _found(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}{ending}" for ending in ENDINGS):
        if path.is_file():
            return path
    pytest.skip(f"no {name} in {folder}; TRACEKIT_REAL_TRACES may name the traces' folder")


@pytest.fixture(scope="session", autouse=True)
def _programs_hear_signals() -> Iterator[None]:
    """Let what tests start hear SIGINT and SIGHUP, wherever the tests themselves are started.

    Under ``nohup``, and in what a shell runs in the background, they are ignored, and what ignores
    them hands that on. What handles them does not, so here they are handled, by doing nothing.
    """
    ignored = [
        each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_IGN
    ]
    for each in ignored:
        signal.signal(each, lambda *_: None)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_go_with_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests, and what they start, a folder for temporary files that is removed at the end.

    Killed processes, launchers and reports of faults leave files there. It is not below pytest's
    own folder: servers run as other users, and paths of sockets are short. Those of tests that
    were killed are removed by the next.
    """
    tmp_path_factory.getbasetemp()  # which stays where it is looked for
    remove_leftovers(Path(tempfile.gettempdir()))
    with own_folder() as folder, pytest.MonkeyPatch.context() as patch:
        # After what multiprocessing removes from it, of priority -100.
        Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """Take what was written for written: what a power cut does is nothing that a test sees.

    SQLite waits four times for each change of a catalogue.
    """
    from tracekit.store import _rows

    really_begin = _rows.begin

    def begin(connection: sqlite3.Connection, statements: Sequence[str], *rest: Any) -> None:
        if statements is _rows.WRITING:
            with suppress(sqlite3.Error):  # the writer finds out what is wrong
                connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("PRAGMA synchronous = OFF")
        really_begin(connection, statements, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        # What is not loaded yet takes it from there.
        patch.setattr(sys.modules.get("tracekit.store._catalogue", _rows), "begin", begin)
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """Let typer's runner make the commands of an application once, and not for every call.

    That is most of what a call of a small command takes. What is added later makes them anew.
    """
    make, made = typer.testing._get_command, {}

    def known(app: typer.Typer) -> Any:
        parts = (app, *app.registered_commands, *app.registered_groups)
        if parts not in made:
            made[parts] = make(app)
        return made[parts]

    typer.testing._get_command = known
    yield
    typer.testing._get_command = make


@pytest.fixture(scope="session", autouse=True)
def _options_of_polars_are_made_once() -> Iterator[None]:
    """Let polars make the options of its operations once, and send nothing to its cloud.

    An operation on a small frame takes a quarter less than where each makes its own, and looks into
    the environment for who wants to hear of it.
    """
    options = QueryOptFlags._eager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueryOptFlags, "_eager", lambda: options)
        patch.setattr(_LocalEngine, "_with_monitoring", lambda _, given: given)
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of the tests have."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture
def one_nsys(shared_folder: Path) -> Iterator[None]:
    """Let one test at a time record with nsys: of two that start at once, one may never begin."""
    with (shared_folder / "nsys.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def real_trace() -> Callable[[str], Path]:
    """Give the path of a real trace by its name; the test is skipped where it is absent.

    Its ending may be left out; an export comes before the report that it is made of.
    """
    return lambda name: _found(TRACES, name)


@pytest.fixture(scope="session")
def real_sample() -> Callable[[str], Path]:
    """Give the path of a small export without GPU work, likewise."""
    return lambda name: _found(SAMPLES, name)


class _ReadOnce:
    """Makes the report of a bundled trace once for all processes; others copy it.

    Of files in `folders`, too, to which fixtures of a session add theirs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.folders = [BUNDLED]

    def __call__(
        self, path: Path, folder: Path, options: ReportOptions, progress: Callable[..., None]
    ) -> ReportMade:
        from tracekit.store._report import make_report

        if not any(map(path.resolve().is_relative_to, self.folders)):
            return make_report(path, folder, options, progress)
        rules = options.rules
        look = options.look
        key = (path, options.digest, look, rules.canonical(), rules.file, *rules.given.items())
        told = self._folder / hashlib.sha256(pickle.dumps(key)).hexdigest()
        with told.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not told.exists():
                kept = Path(tempfile.mkdtemp(dir=self._folder)) / "report"
                made = make_report(path, kept, options, progress)
                told.write_bytes(pickle.dumps((kept, made)))
        kept, made = pickle.loads(told.read_bytes())
        progress("copy", 0, 1)
        shutil.copytree(kept, folder)
        return made


@pytest.fixture(scope="session")
def _read_once(shared_folder: Path) -> _ReadOnce:
    (folder := shared_folder / "reports").mkdir(exist_ok=True)
    return _ReadOnce(folder)


@pytest.fixture(scope="module")
def samples_read_once(_read_once: _ReadOnce) -> Iterator[None]:
    """Let each bundled trace be read and attributed once, for tests of what is asked of its run.

    All else of an ingest is done each time. Reading has tests of its own.
    """
    from tracekit.store import _jobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_jobs, "make_report", _read_once)
        yield


@pytest.fixture(scope="session")
def _facts() -> dict[tuple[Any, ...], tuple[dict[Any, Any], ...]]:
    """What analyses have found of runs, by their content."""
    return {}


@pytest.fixture(scope="module")
def facts_found_once(_facts: dict[tuple[Any, ...], tuple[dict[Any, Any], ...]]) -> Iterator[None]:
    """Let what all questions of a run share be found once, for tests that only ask runs.

    Every opening has tables of its own. Runs are the same if copied with the times of their files.
    """
    from tracekit.runs._opened import OpenedRun

    opened = OpenedRun.trace.func

    def trace(run: OpenedRun) -> Trace:
        made = opened(run)
        if run._rules or run._workers or len(run._reports) < len(run.record.files):
            return made
        folder, record = run._store.folder(run.record), run.record
        tables = ((each.relative_to(folder), each.stat()) for each in folder.rglob("*.parquet"))
        state = frozenset((path, told.st_size, told.st_mtime_ns) for path, told in tables)
        key = (record.digest, record.options, record.warnings, state)
        known = _facts.setdefault(key, (made._known, made._known_of_all))
        for name, facts in zip(("_known", "_known_of_all"), known, strict=True):
            object.__setattr__(made, name, facts)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenedRun, "trace", found := cached_property(trace))
        found.__set_name__(OpenedRun, "trace")
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium on the path")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def builder() -> TraceBuilder:
    from trace_builder import TraceBuilder

    return TraceBuilder()


@pytest.fixture
def b(builder: TraceBuilder) -> TraceBuilder:
    """The same, for tests that say it in every line."""
    return builder


@pytest.fixture(params=["as it stands", "compiled"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have loops run as they stand, or compiled however few rows there are."""
    from tracekit.support import compiled

    if request.param == "compiled":
        monkeypatch.setattr(compiled, "FEW_ROWS", 0)
    return str(request.param)


@pytest.fixture
def heard() -> list[str]:
    """What a page complains of, asks, or loads beside itself."""
    return []
