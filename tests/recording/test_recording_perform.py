"""Plans, and what becomes of them under a program that takes the place of nsys."""

from __future__ import annotations

import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import by_day
from fake_nsys import make_fake_nsys
from hasty_supervisor import hasten

from tracekit.errors import ProgramError, RecordingError, UsageError
from tracekit.recording import Nsys, Wanted, by_window, find_nsys, perform, plan, reports_in
from tracekit.recording._plan import MEMORY, TOPOLOGY


@pytest.fixture
def nsys(tmp_path: Path) -> Nsys:
    return find_nsys(str(make_fake_nsys(tmp_path)))


def test_one_report_of_a_program(tmp_path: Path, nsys: Nsys) -> None:
    made = plan(["python", "a b.py"], Wanted(), nsys, tmp_path / "out")
    assert made.environment == {}
    assert made.command[-3:] == (f"--output={tmp_path}/out/report", "python", "a b.py")
    assert shlex.split(str(made)) == list(made.command)


def test_a_report_of_each_rank(tmp_path: Path, nsys: Nsys) -> None:
    command = ["srun", "-n", "2", "./train"]
    made = plan(command, Wanted(), nsys, tmp_path / "out")
    assert made.command[:5] == ("srun", "-n", "2", nsys.program, "profile")
    assert made.command[-2:] == (f"--output={tmp_path}/out/rank%q{{SLURM_PROCID}}", "./train")
    together = plan(command, Wanted(), nsys, tmp_path / "out", one_report=True)
    assert together.command[0] == nsys.program
    assert together.command[-5:] == (f"--output={tmp_path}/out/report", *command)


_LAUNCHING = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
program = words[next(at for at, word in enumerate(words) if word in ("sh", {nsys!r})):]
for rank in range(2):
    ranked = {{**os.environ, {variable!r}: str(rank), "LOCAL_RANK": str(rank)}}
    subprocess.run(program, env=ranked, check=True)
"""


@pytest.mark.parametrize(
    ("launcher", "variable", "told"),
    [
        ("accelerate launch --num_processes 2", "RANK", "--lr 3"),
        ("accelerate launch --cpu", "PMI_RANK", "--lr 3"),
        ("deepspeed --num_gpus 2", "RANK", "--local_rank={} --lr 3"),
        ("horovodrun -np 2 " + sys.executable, "HOROVOD_RANK", "--lr 3"),
    ],
)
def test_launchers_of_frameworks_have_a_report_of_each_rank(
    tmp_path: Path,
    nsys: Nsys,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    variable: str,
    told: str,
) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    name, *options = shlex.split(launcher)
    program = tmp_path / name
    program.write_text(
        _LAUNCHING.format(python=sys.executable, variable=variable, nsys=nsys.program)
    )
    program.chmod(0o755)
    script = tmp_path / "a b.py"
    said = tmp_path / "said"
    script.write_text(f"import sys; print(*sys.argv[1:], file=open({str(said)!r}, 'a'))")
    words = [str(program), *options, str(script), "--lr", "3"]
    made = plan(words, Wanted(), nsys, tmp_path / "out")
    reports = perform(made)
    assert [report.name for report in reports] == ["rank0.nsys-rep", "rank1.nsys-rep"]
    assert said.read_text() == "".join(told.format(rank) + "\n" for rank in range(2))


@pytest.fixture
def mpirun(tmp_path: Path) -> Path:
    """An mpirun of Open MPI, with its library beside it."""
    for name in ("bin", "lib"):
        (tmp_path / "mpi" / name).mkdir(parents=True)
    launcher = tmp_path / "mpi" / "bin" / "mpirun"
    launcher.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.3'\n")
    launcher.chmod(0o755)
    for name in ("libmpi.so", "libmpi.so.40", "libmpi.so.40.40.1", "libmpi.so.x"):
        (tmp_path / "mpi" / "lib" / name).touch()
    return launcher


def test_mpi_is_loaded_before_a_program_in_python(tmp_path: Path, nsys: Nsys, mpirun: Path) -> None:
    """mpi4py loads MPI when nsys has looked for it already, and what is traced then crashes."""
    made = plan([str(mpirun), "-n", "2", "python3", "a.py"], Wanted(), nsys, tmp_path)
    output = made.command.index(f"--output={tmp_path}/rank%q{{OMPI_COMM_WORLD_RANK}}")
    assert "--mpi-impl=openmpi" in made.command
    shell, option, script, library, *program = made.command[output + 1 :]
    assert (shell, option, program) == ("sh", "-c", ["python3", "a.py"])
    assert library == str(tmp_path / "mpi" / "lib" / "libmpi.so.40")
    # Run with `env` in place of the program, whose variable has a value already.
    said = subprocess.run(
        [shell, option, script, "/y.so", "env"], env={"LD_PRELOAD": ""}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert "LD_PRELOAD=/y.so\n" in said.stdout
    assert '"${LD_PRELOAD:+$LD_PRELOAD:}$0"' in script
    assert shlex.split(str(made)) == list(made.command)


def test_open_mpi_of_debian_is_in_a_folder_of_its_architecture(
    tmp_path: Path, nsys: Nsys, mpirun: Path
) -> None:
    own = tmp_path / "mpi" / "lib"
    (own / "x86_64-linux-gnu").mkdir()
    for path in own.glob("libmpi*"):
        path.rename(own / "x86_64-linux-gnu" / path.name)
    command = ["env", "X=1", str(mpirun), "-n", "2", "python3", "a.py"]
    made = plan(command, Wanted(), nsys, tmp_path)
    assert str(own / "x86_64-linux-gnu" / "libmpi.so.40") in made.command
    assert made.command[:3] == ("env", "X=1", str(mpirun))
    mpirun.write_text("#!/bin/sh\necho HYDRA\n")  # whose library another one there is
    assert "sh" not in plan(command, Wanted(), nsys, tmp_path).command


def test_what_finds_mpi_itself_is_left_alone(tmp_path: Path, nsys: Nsys, mpirun: Path) -> None:
    made = plan([str(mpirun), "-n", "2", "./a"], Wanted(), nsys, tmp_path)
    assert "--mpi-impl=openmpi" in made.command
    assert made.command[-2:] == (f"--output={tmp_path}/rank%q{{OMPI_COMM_WORLD_RANK}}", "./a")
    # One report is written by an nsys around the launcher.
    one = plan([str(mpirun), "python", "a"], Wanted(), nsys, tmp_path, one_report=True)
    library = str(tmp_path / "mpi" / "lib" / "libmpi.so.40")
    assert one.command[-8:-5] == (f"--output={tmp_path}/report", str(mpirun), "sh")
    assert one.command[-3:] == (library, "python", "a")


def test_an_mpi_without_a_library_beside_it(tmp_path: Path, nsys: Nsys, mpirun: Path) -> None:
    for path in (tmp_path / "mpi" / "lib").iterdir():
        path.unlink()
    command = [str(mpirun), "-n", "2", "python3", "a.py"]
    assert "--trace=cuda,nvtx" in plan(command, Wanted(), nsys, tmp_path).command
    asked = plan(command, Wanted(trace="mpi"), nsys, tmp_path).command
    assert "--trace=mpi" in asked
    assert "sh" not in asked
    named = plan(command, Wanted(mpi_library="/x.so"), nsys, tmp_path).command
    assert "/x.so" in named
    assert "--mpi-impl=openmpi" in named


def test_variables_that_are_set(tmp_path: Path, nsys: Nsys) -> None:
    by_range = plan(["a"], Wanted(capture_range="x@y"), nsys, tmp_path)
    assert by_range.environment == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
    assert str(by_range).startswith("NSYS_NVTX_PROFILER_REGISTER_ONLY=0 /")
    logged = plan(["a"], Wanted(capture_range="cuda", nccl_log=True), nsys, tmp_path)
    assert logged.environment["NCCL_DEBUG"] == "INFO"
    assert logged.environment["NCCL_DEBUG_FILE"] == f"{tmp_path}/nccl.%h.%p.log"


@pytest.mark.parametrize("wanted", [Wanted(gpu_metrics="all"), Wanted(nic_metrics=True)])
def test_counters_are_sampled_once_per_machine(tmp_path: Path, nsys: Nsys, wanted: Wanted) -> None:
    with pytest.raises(UsageError, match="--one-report"):
        plan(["srun", "a"], wanted, nsys, tmp_path)
    assert plan(["srun", "a"], wanted, nsys, tmp_path, one_report=True)


@pytest.mark.slow
def test_real_torchrun(tmp_path: Path, nsys: Nsys) -> None:
    """It replaces dollars in the words that it passes on, of which the supervisor's are some."""
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("no torchrun: pip install 'tracekit[test]'")
    program = tmp_path / "train.py"
    program.write_text(f"import os; open({str(tmp_path)!r} + '/of' + os.environ['RANK'], 'w')")
    words = [str(torchrun), "--nproc-per-node", "2", str(program)]
    made = perform(plan(words, Wanted(), nsys, tmp_path / "out"))
    assert [path.stem for path in made] == ["rank0", "rank1"]
    assert {path.name for path in tmp_path.glob("of*")} == {"of0", "of1"}


def test_reports_of_windows_by_the_number_of_their_window() -> None:
    names = ("rank0.2", "rank1.1", "rank1.2", "rank0.10", "rank0.1")
    found = by_window([Path(f"{name}.nsys-rep") for name in names])
    assert {number: [path.stem for path in paths] for number, paths in found.items()} == {
        1: ["rank1.1", "rank0.1"], 2: ["rank0.2", "rank1.2"], 10: ["rank0.10"]
    }  # fmt: skip
    assert list(found) == [1, 2, 10]
    one = Path("report.nsys-rep")
    assert by_window([one]) == {1: [one]}


def test_ranks_count_the_steps_of_their_windows_themselves(tmp_path: Path, nsys: Nsys) -> None:
    wanted = Wanted(trace="nvtx", every=9, length=3)
    with pytest.raises(UsageError, match="each rank counts the steps of its windows itself"):
        plan(["torchrun", "train.py"], wanted, nsys, tmp_path, one_report=True)


def test_reports_are_there_once_the_program_is_through(tmp_path: Path, nsys: Nsys) -> None:
    out = tmp_path / "deep" / "out"
    seen = f"import os; print(os.listdir({str(out.parent)!r}))"
    made = perform(plan([sys.executable, "-c", seen], Wanted(), nsys, out))
    assert made == [out / "report.nsys-rep"] == reports_in(out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_its_output_leaves_standard_output_alone(
    tmp_path: Path, nsys: Nsys, capfd: pytest.CaptureFixture[str]
) -> None:
    perform(plan([sys.executable, "-c", "print('loss 3')"], Wanted(), nsys, tmp_path / "out"))
    assert capfd.readouterr().out == ""


def test_nothing_is_overwritten(tmp_path: Path, nsys: Nsys) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(UsageError, match="is not empty: give another"):
        perform(plan(["true"], Wanted(), nsys, out))
    (out / "mine").unlink()
    assert perform(plan(["true"], Wanted(), nsys, out))


def test_a_program_that_fails(tmp_path: Path, nsys: Nsys) -> None:
    out = tmp_path / "out"
    made = plan([sys.executable, "-c", "raise SystemExit(3)"], Wanted(), nsys, out)
    with pytest.raises(RecordingError, match=r"SystemExit\(3\)' ended with code 3: .*out.partial"):
        perform(made)
    assert not out.exists()
    assert [path.name for path in reports_in(tmp_path / "out.partial")] == ["report.nsys-rep"]
    # What an earlier attempt left is neither lost, nor taken for a part of the next one.
    with pytest.raises(UsageError, match=r"out.partial contains what an earlier attempt rec"):
        perform(plan(["true"], Wanted(), nsys, out))
    (tmp_path / "out.partial" / "nccl.host.1.log").touch()
    assert perform(plan(["true"], Wanted(), nsys, out), anew=True) == [out / "report.nsys-rep"]
    assert [path.name for path in out.iterdir()] == ["report.nsys-rep"]
    assert not (tmp_path / "out.partial").exists()


_NESTED = """
from pathlib import Path
from tracekit.errors import UsageError
from tracekit.recording import *
try:
    perform(plan(["true"], Wanted(), find_nsys({tool!r}), Path({out!r})), anew=True)
except UsageError as error:
    raise SystemExit(0 if "is being recorded into at this moment" in str(error) else 1)
raise SystemExit(2)
"""


def test_two_recordings_of_one_name_at_once(tmp_path: Path, nsys: Nsys) -> None:
    code = _NESTED.format(tool=nsys.program, out=str(tmp_path / "out"))
    made = plan([sys.executable, "-c", code], Wanted(), nsys, tmp_path / "out")
    assert perform(made)  # the program tries to record into the same folder, and is refused


def test_a_percent_sign_is_not_for_nsys(tmp_path: Path, nsys: Nsys) -> None:
    made = plan(["srun", "a"], Wanted(), nsys, tmp_path / "100%p")
    assert made.command[-2] == f"--output={tmp_path}/100%%p/rank%q{{SLURM_PROCID}}"


def test_no_report_is_written(tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_REPORT", "1")
    with pytest.raises(
        RecordingError, match=r"nsys \(2023.4.4\) wrote no report of true: .*capture range"
    ):
        perform(plan(["true"], Wanted(), nsys, tmp_path / "out"))
    assert not (tmp_path / "out.partial").exists()


def test_a_launcher_that_is_not_there(tmp_path: Path, nsys: Nsys) -> None:
    with pytest.raises(RecordingError, match="/no/such/srun does not run"):
        perform(plan(["/no/such/srun", "a"], Wanted(), nsys, tmp_path / "out"))
    assert list(tmp_path.glob("out*")) == []


_SLEEPING = """
import os, pathlib, signal, time
signal.signal(signal.SIGINT, {handler})
pathlib.Path({ready!r}).write_text(str(os.getpid()))
try:
    time.sleep(60)
except KeyboardInterrupt:
    pass
"""

_RECORDING = """
import signal, sys
from pathlib import Path
from tracekit.recording import *
signal.signal(signal.SIGINT, {handler})
made = plan([sys.executable, "-c", {program!r}], Wanted(), find_nsys({tool!r}), Path({out!r}))
try:
    perform(made)
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


def _tool(nsys: Nsys, before: str) -> str:
    """Return an nsys that does something before it starts its program."""
    tool = Path(nsys.program).with_name("patient")
    tool.write_text(Path(nsys.program).read_text().replace("code = subprocess", before))
    tool.chmod(0o755)
    return str(tool)


@pytest.fixture
def patient(nsys: Nsys) -> str:
    """An nsys that an interrupt does not end before its program."""
    handled = "import signal; signal.signal(signal.SIGINT, lambda *_: None)\n"
    return _tool(nsys, f"{handled}code = subprocess")


@contextmanager
def _recording(
    folder: Path, tool: str, program: str = "signal.default_int_handler", ours: str = "",
) -> Iterator[tuple[subprocess.Popen[str], int]]:  # fmt: skip
    """Give a recording whose program sleeps, and that program's number.

    Parameters
    ----------
    folder
        Where it is recorded, into `out`.
    tool
        The nsys.
    program, ours
        What the program and the recording do of SIGINT.
    """
    ready = folder / "ready"
    sleeping = _SLEEPING.format(ready=str(ready), handler=program)
    script = _RECORDING.format(
        program=sleeping, tool=tool, out=str(folder / "out"),
        handler=ours or "signal.default_int_handler",
    )  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True,
    ) as process:  # fmt: skip
        try:
            _await(lambda: ready.exists() and ready.read_text() != "")
            yield process, int(ready.read_text())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "to_all"),
    by_day(
        product([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [True, False]),
        (signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, False),
    ),
)  # fmt: skip
def test_an_interrupt_waits_for_the_report(
    tmp_path: Path, patient: str, sent: signal.Signals, to_all: bool
) -> None:
    """Be it sent to all processes, as from a terminal, or to tracekit alone."""
    with _recording(tmp_path, patient) as (process, _):
        (os.killpg if to_all else os.kill)(process.pid, sent)
        _, said = process.communicate(timeout=60)
    assert said == "interrupted\n"
    assert reports_in(tmp_path / "out.partial")


def test_in_the_background_it_can_be_terminated(tmp_path: Path, patient: str) -> None:
    """Where a shell lets us ignore interrupts, the program that we start hears them."""
    with _recording(tmp_path, patient, ours="signal.SIG_IGN") as (process, _):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert said == "interrupted\n"
    assert reports_in(tmp_path / "out.partial")


@pytest.mark.slow
@pytest.mark.parametrize("stubborn", [False, True], ids=["hears SIGTERM", "hears nothing"])
def test_a_program_does_not_outlive_an_interrupted_nsys(
    tmp_path: Path, nsys: Nsys, stubborn: bool
) -> None:
    """As where nsys is interrupted before it listens, and the program before it could hear it."""
    tool = _tool(nsys, "process = subprocess.Popen(program)\nprocess.wait()\ncode = subprocess")
    program = "signal.SIG_IGN"
    if stubborn:
        program += "); signal.signal(signal.SIGTERM, signal.SIG_IGN"
    with _recording(tmp_path, tool, program) as (process, left):
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert said.endswith("interrupted\n")
        _await(lambda: not _runs(left))


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_while_the_program_is_started(
    tmp_path: Path, patient: str, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    """It is held back until there is a program that it can end."""
    start = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def interrupted(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), sent)
        started.append(start(*words, **options))
        return started[0]

    made = plan([sys.executable, "-c", "import time; time.sleep(60)"], Wanted(),
                find_nsys(patient), tmp_path / "out")  # fmt: skip
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            perform(made)
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].returncode is not None


def test_a_program_on_a_terminal_can_read_it(tmp_path: Path, nsys: Nsys) -> None:
    """In the background of a terminal it would be stopped as it reads."""
    said = tmp_path / "said"
    program = f"open({str(said)!r}, 'w').write(input())"
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from tracekit.recording import *\n"
        f"perform(plan([sys.executable, '-c', {program!r}], Wanted(), find_nsys({nsys.program!r}),"
        f" Path({str(tmp_path / 'out')!r})))\n"
    )
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", script])
    os.write(terminal, b"yes\n")
    end = time.monotonic() + 60
    while not reports_in(tmp_path / "out") and time.monotonic() < end:
        time.sleep(0.05)
    os.close(terminal)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # if it was stopped it would be waited for in vain
    os.waitpid(pid, 0)
    assert said.read_text() == "yes"


_SMI = """
case "$1" in
    topo) echo "GPU0 X";;
    *) echo "timestamp, index"; echo "$*" >&2; while :; do sleep 0.05; echo sample; done;;
esac
"""


def test_the_machine_is_watched_as_long_as_the_program_runs(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What lies beside the Python that runs this nsys is taken for a tool of it, and sh may.
    shell = shutil.copy("/bin/sh", tmp_path / "sh")
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!{shell}\n{_SMI}")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    out = tmp_path / "a folder"
    program = [sys.executable, "-c", "import time; time.sleep(0.5)"]
    perform(plan(program, Wanted(nvidia_smi=True), nsys, out))
    names = {path.name for path in out.iterdir()}
    assert names == {TOPOLOGY, MEMORY, "report.nsys-rep"}
    assert (out / TOPOLOGY).read_text() == "GPU0 X\n"
    sampled = (out / MEMORY).read_text()
    assert sampled.startswith("timestamp, index\nsample\n")
    time.sleep(0.2)
    assert (out / MEMORY).read_text() == sampled


def test_a_machine_without_the_tool_cannot_be_watched(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    with pytest.raises(UsageError, match="no nvidia-smi here: leave out"):
        plan(["true"], Wanted(nvidia_smi=True), nsys, tmp_path / "out")


_HIDING = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hidden = "import os, time; os.setsid(); time.sleep(60)"
children = [subprocess.Popen([sys.executable, "-c", hidden]) for _ in range(2)]
pids = [os.getpid(), *(each.pid for each in children)]
pathlib.Path({ready!r} + ".new").write_text(" ".join(map(str, pids)))
os.rename({ready!r} + ".new", {ready!r})
{then}
"""


def _gone(pids: list[int], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = [each for each in pids if psutil.pid_exists(each)]
        if all(psutil.Process(each).status() == psutil.STATUS_ZOMBIE for each in left):
            return True
        time.sleep(0.05)
    return False


def test_nothing_outlives_a_program(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is in a session of its own, nor what its parent has left."""
    hasten(tmp_path, monkeypatch)
    ready = tmp_path / "ready"
    code = _HIDING.format(ready=str(ready), then="")
    perform(plan([sys.executable, "-c", code], Wanted(), nsys, tmp_path / "out"))
    pids = [int(each) for each in ready.read_text().split()]
    assert len(pids) == 3
    assert _gone(pids, 0.1)


def test_nothing_outlives_a_recording_that_is_killed(tmp_path: Path, nsys: Nsys) -> None:
    ready = tmp_path / "ready"
    code = _HIDING.format(ready=str(ready), then="time.sleep(60)")
    script = _RECORDING.format(
        program=code, tool=nsys.program, out=str(tmp_path / "out"),
        handler="signal.default_int_handler",
    )  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL) as process:
        while not ready.exists():
            time.sleep(0.02)
        below = [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
        process.kill()
    assert len(below) >= 4
    assert _gone(below)


@pytest.mark.parametrize("code", [1, 3, 130])
def test_the_code_of_a_program_is_passed_on(tmp_path: Path, nsys: Nsys, code: int) -> None:
    words = [sys.executable, "-c", f"raise SystemExit({code})"]
    with pytest.raises(ProgramError) as error:
        perform(plan(words, Wanted(), nsys, tmp_path / "out"))
    assert error.value.exit_code == code


def test_nsys_that_fails_is_told_from_a_program_that_does(
    tmp_path: Path, nsys: Nsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_REPORT", "1")
    words = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(RecordingError, match=r"/nsys \(2023.4.4\) ended with code 3 and") as error:
        perform(plan(words, Wanted(), nsys, tmp_path / "out"))
    assert error.value.exit_code == 2
    with pytest.raises(RecordingError, match="srun ended with code 1 and wrote no report of a"):
        perform(plan([str(_srun(tmp_path)), "a"], Wanted(), nsys, tmp_path / "ranks"))


def _srun(folder: Path) -> Path:
    """Return a launcher that fails."""
    launcher = folder / "srun"
    launcher.write_text("#!/bin/sh\nexit 1\n")
    launcher.chmod(0o755)
    return launcher
