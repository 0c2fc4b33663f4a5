"""However a program, its launcher, nsys or the supervisor end: `record` returns, nothing stays.

Nothing here waits for a time to pass but what is tested: events are files and pipes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from fake_nsys import make_fake_nsys
from hasty_supervisor import hasten

from tracekit.errors import ProgramError, RecordingError
from tracekit.recording import Nsys, Wanted, _supervisor, find_nsys, perform, plan, reports_in

LONG = 600
"""Seconds that a process would sleep which nobody ends."""

REAL = pytest.mark.skipif(shutil.which("nsys") is None, reason="no nsys on the path")

TRIES = 3
"""How often a recording may begin: on a busy machine nsys 2023.4 may end before its program."""


def _tools(mark: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """Run a test with what takes the place of nsys, and, where it has a mark, with nsys."""
    return pytest.mark.parametrize(
        "nsys", ["fake", pytest.param("real", marks=[mark, REAL])], indirect=True
    )


AT_NIGHT = pytest.mark.nightly
BOTH, BOTH_AT_NIGHT = _tools(pytest.mark.slow), _tools(AT_NIGHT)


@pytest.fixture
def nsys(request: pytest.FixtureRequest, tmp_path: Path) -> Nsys:
    if getattr(request, "param", "fake") == "real":
        request.getfixturevalue("one_nsys")
        return find_nsys("nsys")
    return find_nsys(str(make_fake_nsys(tmp_path)))


def _script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"import os, signal, subprocess, sys, time\n{text}")
    return str(path)


def _note(folder: Path, name: str) -> str:
    """Return a line that writes the number of the process into a file, at once."""
    path = str(folder / name)
    return f"open({path!r} + '~', 'w').write(str(os.getpid())); os.rename({path!r} + '~', {path!r})"


def _daemon(folder: Path, then: str = f"time.sleep({LONG})") -> str:
    """Return lines that leave a daemon in a session of its own, and go on when it is one."""
    daemon = _script(folder, "daemon.py", f"os.setsid(); {_note(folder, 'daemon')}\n{then}")
    there = str(folder / "daemon")
    return (
        f"subprocess.Popen([sys.executable, {daemon!r}], stdin=subprocess.DEVNULL,"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"while not os.path.exists({there!r}): time.sleep(0.01)\n"
    )


def _record(folder: Path, nsys: Nsys, words: list[str], wait: str = "work") -> list[Path]:
    """Record a program that leaves a note; a real nsys that ends before it begins once more."""
    made = plan(words, Wanted(trace="nvtx"), nsys, folder / "out")
    for _ in range(TRIES):
        try:
            return perform(made, wait=wait)
        except RecordingError:
            if nsys.program != shutil.which("nsys") or any(map(Path.exists, _notes(folder))):
                raise
            shutil.rmtree(folder / "out.partial", ignore_errors=True)
    pytest.skip(_EARLY)


def _notes(folder: Path) -> list[Path]:
    return [folder / each for each in ("daemon", "program", "rank0", "writes")]


_EARLY = f"nsys ended before its program in each of {TRIES} tries"


def _runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _await(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("nsys", "code"),
    [
        ("fake", 0),
        pytest.param("fake", 3, marks=AT_NIGHT),
        pytest.param("fake", 137, marks=AT_NIGHT),
        pytest.param("real", 0, marks=[AT_NIGHT, REAL]),
        pytest.param("real", 3, marks=[AT_NIGHT, REAL]),
        pytest.param("real", 137, marks=[pytest.mark.slow, REAL]),
    ],
    indirect=["nsys"],
)
def test_a_daemon_is_not_waited_for(
    tmp_path: Path,
    nsys: Nsys,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whether the program ended well, failed or was killed: its code and its report are kept."""
    hasten(tmp_path, monkeypatch)
    end = "os.kill(os.getpid(), signal.SIGKILL)" if code > 128 else f"sys.exit({code})"
    program = _script(tmp_path, "train.py", f"{_daemon(tmp_path)}{end}")
    if code:
        with pytest.raises(ProgramError) as error:
            _record(tmp_path, nsys, [sys.executable, program])
        assert error.value.exit_code == code
        assert reports_in(tmp_path / "out.partial")
    else:
        assert _record(tmp_path, nsys, [sys.executable, program])
    daemon = int((tmp_path / "daemon").read_text())
    assert not _runs(daemon)
    said = capfd.readouterr().err
    assert f"ends process {daemon} (" in said
    assert "which the program left without work; --wait all waits for it" in said


_WRITING = """
sys.path.insert(0, {root!r})
from tracekit.annotation._nvtx import NvtxRanges
ranges = NvtxRanges.of_profiler(os.environ["NVTX_INJECTION64_PATH"])
{note}
for _ in range(20):  # twice as long as something may be idle
    ranges.push("FP")
    time.sleep(0.1)
    ranges.pop()
open({done!r}, "w").close()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("one_nsys")
@REAL
def test_what_writes_ranges_in_the_background_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python train.py &` in a shell, though it hardly computes; beside it a daemon is ended.

    The daemon has no environment: it does not know that it is recorded, and still hangs on what
    started the program.
    """
    hasten(tmp_path, monkeypatch, _IDLE_S=1.0)
    done = tmp_path / "done"
    root = str(Path(__file__).parents[2])
    text = _WRITING.format(root=root, note=_note(tmp_path, "writes"), done=str(done))
    train = _script(tmp_path, "train.py", text)
    daemon = _daemon(tmp_path).replace("stdin=", "env={}, stdin=")
    other = _script(tmp_path, "other.py", daemon)
    shell = f"{sys.executable} {train} & {sys.executable} {other};"
    shell += f" until [ -e {tmp_path}/writes ]; do sleep 0.05; done"
    assert _record(tmp_path, find_nsys("nsys"), ["sh", "-c", shell])
    assert done.exists()
    assert not _runs(int((tmp_path / "daemon").read_text()))


@pytest.mark.slow
def test_what_computes_in_the_background_has_time_to_load(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    for loads in (True, False):
        seconds = 60.0 if loads else 0.0
        # Among many programs even what computes may get little of a CPU.
        hasten(tmp_path, monkeypatch, _IDLE_S=1.0, _WORKING_SHARE=0.01, _LOADING_S=seconds)
        lasts = 1.5 if loads else 600
        busy = f"while time.process_time() < {lasts}: pass\nopen({str(done)!r}, 'w').close()"
        program = _script(tmp_path, "train.py", _daemon(tmp_path, busy))
        perform(plan([sys.executable, program], Wanted(), nsys, tmp_path / str(loads)))
        assert done.exists() == loads
        for left in (done, tmp_path / "daemon"):
            left.unlink(missing_ok=True)


_LATE = """
parent = os.getppid()
while os.getppid() == parent: time.sleep(0.01)
time.sleep(1)
open({done!r}, "w").close()
"""


@BOTH_AT_NIGHT
@pytest.mark.parametrize(
    ("wait", "is_waited_for"), [("all", True), ("primary", False), ("0", False), ("60", True)]
)
def test_what_is_waited_for_can_be_said(
    tmp_path: Path,
    nsys: Nsys,
    wait: str,
    is_waited_for: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What is left ends by itself a second after its parent, without any work."""
    hasten(tmp_path, monkeypatch)
    done = tmp_path / "done"
    program = _script(tmp_path, "train.py", _daemon(tmp_path, _LATE.format(done=str(done))))
    assert _record(tmp_path, nsys, [sys.executable, program], wait)
    assert done.exists() == is_waited_for
    assert ("the recording is cut there" in capfd.readouterr().err) == (not is_waited_for)
    assert not _runs(int((tmp_path / "daemon").read_text()))


_LAUNCHER = """#!{python}
import os, signal, subprocess, sys, time
notes = [{folder!r} + "/rank" + rank for rank in "01"]
ranks = [
    subprocess.Popen(sys.argv[1:], env={{**os.environ, "SLURM_PROCID": rank}}) for rank in "01"
]
while not all(map(os.path.exists, notes)):
    if any(rank.poll() is not None for rank in ranks):  # its nsys ended before it began
        for rank, note in zip(ranks, notes):
            rank.kill()
            os.path.exists(note) and os.unlink(note)
        sys.exit("early")
    time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
"""


@BOTH
def test_a_launcher_that_was_killed(tmp_path: Path, nsys: Nsys) -> None:
    """As torchrun by a lack of memory: its ranks are ended, and what they did is kept."""
    launcher = tmp_path / "srun"
    launcher.write_text(_LAUNCHER.format(python=sys.executable, folder=str(tmp_path)))
    launcher.chmod(0o755)
    rank = _note(tmp_path, "rank").replace("/rank'", "/rank' + os.environ['SLURM_PROCID']")
    program = _script(tmp_path, "train.py", f"{rank}\ntime.sleep({LONG})")
    with pytest.raises(ProgramError) as error:
        _record(tmp_path, nsys, [str(launcher), sys.executable, program])
    assert error.value.exit_code == 137
    assert [path.stem for path in reports_in(tmp_path / "out.partial")] == ["rank0", "rank1"]
    assert not any(_runs(int((tmp_path / f"rank{each}").read_text())) for each in range(2))


_RECORDING = """
import sys
from pathlib import Path
from tracekit.errors import TracekitError
from tracekit.recording import *
try:
    perform(plan([sys.executable, {program!r}], Wanted(trace="nvtx"), find_nsys({tool!r}),
                 Path({out!r})))
except TracekitError as error:
    sys.exit(str(error))
"""


@contextmanager
def _recording(
    folder: Path, nsys: Nsys, program: str, stderr: int = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[str], dict[str, psutil.Process]]]:
    """Give a recording in a process of its own, once its program runs, and all below it by name."""
    text = _RECORDING.format(program=program, tool=nsys.program, out=str(folder / "out"))
    words, begun = [sys.executable, "-c", text], folder / "program"
    for _ in range(TRIES if nsys.program == shutil.which("nsys") else 1):
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=stderr, text=True) as process:
            try:
                _await(lambda made=process: begun.exists() or made.poll() is not None)
                if begun.exists():
                    below = psutil.Process(process.pid).children(recursive=True)
                    yield process, {_role(each): each for each in below}
                    return
                said = process.communicate()[1]
            finally:
                process.kill()
        shutil.rmtree(folder / "out.partial", ignore_errors=True)
    if nsys.program == shutil.which("nsys"):
        pytest.skip(_EARLY)
    pytest.fail(said)


def _role(process: psutil.Process) -> str:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        line = ""
    for part, role in {
        "_supervisor.py": "supervisor", "--start-agent": "agent", "nsys-launcher": "launcher",
        "nsys-tee": "tee", " profile ": "nsys", "train.py": "program",
    }.items():  # fmt: skip
        if part in line:
            return role
    return line


@pytest.mark.parametrize(
    ("nsys", "killed"),
    [
        *(pytest.param("fake", each, marks=AT_NIGHT) for each in ("program", "nsys")),
        ("fake", "supervisor"),
        *(
            pytest.param("real", each, marks=[AT_NIGHT, REAL])
            for each in ("program", "nsys", "supervisor", "agent", "tee")
        ),
        pytest.param("real", "launcher", marks=[pytest.mark.slow, REAL]),
    ],
    indirect=["nsys"],
)
def test_any_process_may_be_killed(tmp_path: Path, nsys: Nsys, killed: str) -> None:
    """The program ends by itself where nobody tells it to."""
    end = tmp_path / "end"
    text = f"while not os.path.exists({str(end)!r}): time.sleep(0.05)"
    program = _script(tmp_path, "train.py", f"{_note(tmp_path, 'program')}\n{text}")
    with _recording(tmp_path, nsys, program) as (process, below):
        below[killed].send_signal(signal.SIGKILL)
        if killed in {"launcher", "tee"}:
            end.touch()
        _, said = process.communicate(timeout=120)
    assert not any(_runs(each.pid) for each in below.values()), said
    if killed == "supervisor":
        assert "was ended by signal 9" in said
    if killed == "launcher":  # which alone would have told nsys that the program has ended
        assert reports_in(tmp_path / "out"), said


@BOTH_AT_NIGHT
def test_pipes_that_are_closed(tmp_path: Path, nsys: Nsys) -> None:
    """As behind `head`: whoever read what the program says has ended."""
    read, write = os.pipe()
    text = "print('x' * 100_000, flush=True); print('y' * 100_000, flush=True)"
    program = _script(tmp_path, "train.py", f"{_note(tmp_path, 'program')}\n{text}")
    os.close(read)
    with _recording(tmp_path, nsys, program, write) as (process, below):
        os.close(write)
        process.wait(timeout=120)
    assert not any(_runs(each.pid) for each in below.values())


def test_what_cannot_be_run_is_said(tmp_path: Path, nsys: Nsys) -> None:
    with pytest.raises(RecordingError, match="ended with code 127"):
        _record(tmp_path, nsys, ["/no/such/program"])


def test_a_program_that_has_just_begun_runs(tmp_path: Path) -> None:
    """Its note is there, and it is none of the processes that were looked at before."""
    (tmp_path / str(os.getpid())).write_text(str(os.getppid()))
    program = _supervisor._Program(str(tmp_path), "work", set())
    assert program._runs({})
    assert program._runs(_supervisor._processes())
