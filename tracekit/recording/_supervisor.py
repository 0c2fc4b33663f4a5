"""Run a command, end idle processes that its program leaves behind, and leave none itself.

It runs as a program of its own, and imports nothing of tracekit. Orphans of the command become its
children, even if they have detached themselves (`PR_SET_CHILD_SUBREAPER`), so that it can end them.
It holds one end of a socket, which closes when the process that started it ends, even by SIGKILL:
the signal that a dying parent can send its children does not reach theirs.

nsys ends only when all processes that its program started have ended, daemons included. So the
program is started by a shell line that writes down its process id, and once it has ended, the
remaining processes are examined every second. They work while one of them holds a CUDA context,
writes events for nsys, or uses the CPU; CPU time alone counts only until the process has had time
to load its libraries.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import NamedTuple

_SUBREAPER = 36
_PAUSE_S = 0.02
_LOOK_S = 1.0
_FORWARDED = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

MARK = "TRACEKIT_RECORDED"
"""Environment variable of all processes of the program, with the folder of notes."""
_NOTE = (
    'read -r pid rest </proc/self/stat && [ -d "$0" ] && echo "$PPID" >"$0/$pid"; '
    f'export {MARK}="$0"; exec "$@"'
)
"""Shell line that notes the program's process id, with that of the nsys process that started it.
torchrun turns two dollars in a word into one, so the shell's own variable cannot be used."""
_LAST_WORDS_S = 5.0
"""Seconds that a process has to end by itself after SIGTERM."""
_IDLE_S = 6.0
"""Seconds without work after which leftover processes are ended."""
_LOADING_S = 30.0
"""Seconds for which a process may compute before it first uses a GPU or writes a range."""
_STUCK_S = 6.0
"""Seconds for which nsys may do nothing after its program has ended."""
_WORKING_SHARE = 0.1
"""Share of a CPU that counts as work: waiting daemons use less, training more."""
_POLLING_SHARE = 0.04
"""Share of a CPU between nsys waiting (1 %) and nsys writing a report."""
_WRITTEN_PER_S = 400_000
"""Least bytes that a working agent of nsys writes per second of CPU: it writes 4 MB; only 20 kB if
it waits."""
_CONTEXT = ("/dev/nvidia-uvm", "/dev/dxg")
"""Files that CUDA opens, unlike programs that only query the driver (nvidia-smi, NVML)."""
_EVENTS = "/nsight_systems/"
"""Part of the path of the file that a recorded process writes its events to."""
_TICKS = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    parent: int
    started: int
    cpu_s: float
    is_ended: bool
    waits: bool
    """Whether it waits for a disk."""


_Processes = dict[int, _Process]
"""Processes: process id -> state."""


class _Signals:
    """Records the signals sent to this process; an interrupt reaches the command by itself."""

    def __init__(self) -> None:
        self.came = False
        self.command: subprocess.Popen[bytes] | None = None

    def take(self, sent: int, _: object) -> None:
        """Record a signal that this process got."""
        self.came = True
        if sent in _FORWARDED and self.command is not None:
            self.command.send_signal(signal.SIGINT)


def main(words: list[str]) -> int:
    """Run the command in `words`; return its exit code, or 128 plus the signal that ended it.

    Words: ``SOCKET NOTES WAIT NSYS AT COMMAND...``. `SOCKET` is a file descriptor, `NOTES` a folder
    for process ids. The command starts with a launcher, or, if `NSYS` is 0, with nsys; the program
    starts at its word `AT`. `WAIT`: which processes to wait for after the program's end: ``work``,
    ``all``, ``primary`` (none), or seconds. If the command cannot be run, the number of the error
    is sent through the socket.
    """
    number, notes, wait, nsys_at, at, *command = words
    starter = socket.socket(fileno=int(number))
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    signals = _Signals()
    for each in (signal.SIGINT, *_FORWARDED):
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signals.take)
    noted = [*command[: int(at)], "sh", "-c", _NOTE, notes, *command[int(at) :]]
    try:
        signals.command = subprocess.Popen(noted)  # noqa: S603 - what the user asked for
    except OSError as error:
        starter.sendall(str(error.errno).encode())
        return 1
    program = _Program(notes, wait, set() if int(nsys_at) else {signals.command.pid})
    code = _wait(signals.command, starter, program)
    if code is None:
        _end_all(signal.SIGKILL if signals.came else signal.SIGINT)
        shutil.rmtree(notes, ignore_errors=True)
        return 1
    program.finish()
    _end_all(signal.SIGTERM)
    return code if code >= 0 else 128 - code


def _wait(
    command: subprocess.Popen[bytes], starter: socket.socket, program: _Program
) -> int | None:
    """Wait for the command's end and return its exit code.

    None if the process that started this one (at the other end of `starter`) ended before.
    """
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    starter.setblocking(False)  # noqa: FBT003
    while (code := command.poll()) is None:
        ready, _, _ = select.select([starter.fileno(), wake], [], [], _LOOK_S)
        if wake in ready:
            os.read(wake, 4096)
        if starter.fileno() in ready and not starter.recv(1):
            return None
        program.look()
    return code


class _Program:
    """The processes of the recorded program: the one that was started, or one per rank.

    Parameters
    ----------
    notes
        Folder with files whose names are their process ids.
    wait
        Which processes to wait for after the program's end: ``work``, ``all``, ``primary`` or
        seconds.
    tools
        Processes of nsys that are known from the start.
    """

    def __init__(self, notes: str, wait: str, tools: set[int]) -> None:
        self._notes = notes
        self._wait = wait
        self._primaries: dict[int, int] = {}
        """Start time of each noted process: process id -> time; 0 if it had ended before."""
        self._starters: dict[int, int] = {}
        """Process of nsys that started each: process id -> process id."""
        self._tools = tools
        """Known processes of nsys, and those of nsys that started them."""
        self._ended_at = math.inf
        self._looked_at = 0.0
        self._worked_at = 0.0
        self._seen: dict[int, tuple[bytes, float]] = {}
        """State of each leftover process at the last look: bytes written, and seconds of CPU."""
        self._have_written: set[int] = set()
        self._ending: dict[int, float] = {}
        """Time since when each process is being ended."""
        self._is_interrupted = False
        self._tools_cpu_s = 0.0
        self._is_cut = False
        """Whether nsys ended before the program."""
        self._progress_at = time.monotonic()

    def look(self) -> None:
        """Once the program has ended, end the processes that it left behind.

        Before that, wait for them while they work, or as the field `wait` says. To be called
        repeatedly.
        """
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S / 2:
            return
        since, self._looked_at, processes = now - self._looked_at, now, _processes()
        if self._runs(processes):
            self._ended_at = math.inf  # or it goes on again, as ranks that are started anew
            self._ending.clear()
            return
        if self._ended_at > now:
            self._ended_at = self._worked_at = self._progress_at = now
        if left := self._left(processes):
            self._progress_at = now
            if self._does_work(left, since, processes):
                self._worked_at = now
            if self._is_over(now):
                self._end(left)
            return
        tools = self._going_tools(processes)
        if tools and (self._ending.keys() & tools or self._is_stuck(processes)):
            self._end(tools)

    def finish(self) -> None:
        """End processes of the program that still run after its launcher or nsys has ended.

        Each nsys is given time to write its report.
        """
        processes = _processes()
        self._is_cut = self._runs(processes)
        self._progress_at = time.monotonic()
        while (left := self._left(processes)) or (
            self._going_tools(processes) and not self._is_stuck(processes)
        ):
            self._end(left)
            _has_children()  # of which those that have ended are let go
            time.sleep(_LOOK_S / 5)
            processes = _processes()

    def _going_tools(self, processes: _Processes) -> list[int]:
        """Return the running processes of nsys; interrupt those that miss the program's end.

        The program is then our child, although the process that started it still runs. Such an nsys
        waits for a message that the program has ended, while its agent polls for events; when
        interrupted, it writes its report.
        """
        for pid, starter in [*self._starters.items()]:
            if {pid, starter} <= processes.keys() and processes[pid].parent == os.getpid():
                del self._starters[pid]
                if (tool := processes[starter].parent) in self._tools:
                    self._is_interrupted = True
                    _send(tool, signal.SIGINT)
        return [pid for pid in self._tools & processes.keys() if not processes[pid].is_ended]

    def _is_stuck(self, processes: _Processes) -> bool:
        """Test whether all remaining processes have used almost no CPU for some time.

        These are those of nsys and of a launcher, as the program has ended.
        """
        now = time.monotonic()
        below = _below({os.getpid()}, processes)
        others = [pid for pid in below if _read(f"/proc/{pid}/comm") != b"nvidia-smi\n"]
        more = sum(self._progress(pid, processes[pid]) for pid in others) - self._tools_cpu_s
        works = not 0 <= more < _POLLING_SHARE * max(now - self._progress_at, 1.0)
        if works or any(processes[each].waits for each in others):
            self._tools_cpu_s, self._progress_at = self._tools_cpu_s + more, now
        return now - self._progress_at > _STUCK_S

    def _progress(self, pid: int, process: _Process) -> float:
        """Return a measure of progress of a process of nsys, in seconds of CPU.

        After an interrupt of nsys its agent, an orphan, may not know of it and go on polling. For
        the agent, bytes written are counted instead, which are a hundred times as many if it works.
        """
        if not self._is_interrupted or pid in self._tools or process.parent != os.getpid():
            return process.cpu_s
        written = _read(f"/proc/{pid}/io").split()[3:4] or [b"0"]
        return int(written[0]) / _WRITTEN_PER_S

    def _runs(self, processes: _Processes) -> bool:
        """Test whether a process started for the program is running, or none is known yet."""
        for name in os.listdir(self._notes):  # noqa: PTH208 - pathlib takes time to load
            pid = int(name)
            if pid not in self._primaries and (parent := _read(f"{self._notes}/{name}").strip()):
                processes = _processes()  # it may have begun since these were looked at
                found = processes.get(pid)
                self._primaries[pid] = found.started if found else 0
                self._starters[pid] = int(parent)
                self._learn_tools(int(parent), processes)
        going = (
            processes[pid]
            for pid, started in self._primaries.items()
            if pid in processes and processes[pid].started == started
        )
        return not self._primaries or any(not each.is_ended for each in going)

    def _learn_tools(self, tool: int, processes: _Processes) -> None:
        """Store the ids of the nsys processes above the program: `tool`, its parent and so on."""
        folder, below = _installed(tool), _below({os.getpid()}, processes)
        while folder and tool in below and _installed(tool) == folder:
            self._tools.add(tool)
            tool = processes[tool].parent

    def _left(self, processes: _Processes) -> list[int]:
        """Return the processes that the program left behind.

        They have the program's environment variable, or descend from what nsys started for it.
        """
        mark = f"{MARK}={self._notes}".encode()
        below = _below({os.getpid()}, processes)
        folders = {_installed(tool) for tool in self._tools}
        started = _below({*self._starters.values()} & processes.keys(), processes)
        return [
            pid
            for pid in sorted(below)
            if pid not in self._tools
            and not processes[pid].is_ended
            and (
                mark in _read(f"/proc/{pid}/environ").split(b"\0")
                or (pid in started and _installed(pid) not in folders)
            )
        ]

    def _is_over(self, now: float) -> bool:
        """Test whether the time to wait for processes that the program left behind is over."""
        if self._wait == "work":
            return bool(self._ending) or now - self._worked_at > _IDLE_S
        longest = float({"all": "inf", "primary": "0"}.get(self._wait, self._wait))
        return bool(self._ending) or now - self._ended_at >= longest

    def _does_work(self, left: list[int], since: float, processes: _Processes) -> bool:
        """Test whether any of the processes `left` has worked since the last call."""
        is_early = time.monotonic() - self._ended_at < _LOADING_S
        works = False
        for pid in left:
            files, used = _open_files(pid), processes[pid].cpu_s
            written = b"".join(_read(each, 64) for each in sorted(files) if _EVENTS in each)
            had_written, had_used = self._seen.get(pid, (written, used))
            self._seen[pid] = (written, used)
            if had_written != written and b"OSRT" not in _variable(pid, b"QUADD_INJECTION_PROXY"):
                self._have_written.add(pid)
                works = True
            computes = used - had_used >= _WORKING_SHARE * since
            works |= computes and (is_early or pid in self._have_written)
            works |= any(each.startswith(_CONTEXT) for each in files)
        return works

    def _end(self, pids: list[int]) -> None:
        """End processes, first by SIGTERM, and print which."""
        now = time.monotonic()
        for pid in pids:
            if pid not in self._ending:
                self._ending[pid] = now
                self._say(pid)
                _send(pid, signal.SIGTERM)
            elif now - self._ending[pid] > _LAST_WORDS_S:
                _send(pid, signal.SIGKILL)

    def _say(self, pid: int) -> None:
        name = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
        if pid in self._tools:
            why = "which does nothing any more"
        elif self._is_cut:
            why = "since what recorded or launched it has ended"
        elif time.monotonic() - self._worked_at > _IDLE_S:
            why = "which the program left without work; --wait all waits for it"
        else:
            why = "which the program left, and which is not waited for: the recording is cut there"
        with suppress(OSError):
            sys.stderr.write(f"tracekit: ends process {pid} ({name.strip()[:60]}), {why}\n")


def _end_all(first: int) -> None:
    """End all descendants of the command: by the signal `first`, and after some time by SIGKILL."""
    end = time.monotonic() + _LAST_WORDS_S
    for each in _below({os.getpid()}, _processes()):
        _send(each, first)
    while _has_children():
        if first == signal.SIGKILL or time.monotonic() > end:
            for each in _below({os.getpid()}, _processes()):
                _send(each, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _has_children() -> bool:
    """Test whether there are child processes, after reaping those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _processes() -> _Processes:
    """Return all processes: process id -> state."""
    names = filter(str.isdigit, os.listdir("/proc"))  # noqa: PTH208 - pathlib takes time to load
    found = ((int(name), _process(name)) for name in names)
    return {pid: process for pid, process in found if process is not None}


def _process(name: str) -> _Process | None:
    words = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()  # the name may hold spaces
    if not words:
        return None
    used = (int(words[11]) + int(words[12])) / _TICKS
    return _Process(int(words[1]), int(words[19]), used, words[0] in b"ZX", words[0] == b"D")


def _below(roots: set[int], processes: _Processes) -> set[int]:
    """Return the descendants of the processes `roots`, without `roots`."""
    found = set(roots)
    while more := {pid for pid, each in processes.items() if each.parent in found} - found:
        found |= more
    return found - roots


def _open_files(pid: int) -> set[str]:
    with suppress(OSError):
        return {_link(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH208
    return set()


def _variable(pid: int, name: bytes) -> bytes:
    words = _read(f"/proc/{pid}/environ").split(b"\0")
    return next((each for each in words if each.startswith(name + b"=")), b"")


def _installed(pid: int) -> str:
    """Return the installation folder of a process: two levels above its executable."""
    return os.path.dirname(os.path.dirname(_link(f"/proc/{pid}/exe")))  # noqa: PTH120


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


def _read(path: str, size: int = -1) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(size)
    except OSError:
        return b""


def _send(pid: int, sent: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
