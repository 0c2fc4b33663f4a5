"""Commands that are killed at any moment, as `reliability.py` tries them.

    python benchmarks/kills.py CASES [COMMAND]    # says how often each was done before, or killed

They work on a store that has files of others in its folders. After each kill nothing is lost, what
the store lists is whole, and no file of others is touched.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / each) for each in (".", "tests", "sample_traces")]

from fake_nsys import make_fake_nsys  # noqa: E402

SAMPLES = ROOT / "sample_traces"
KEPT, OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite", SAMPLES / "p2p_4gpu_star.sqlite"
RANKS = [SAMPLES / "recorded" / f"mpi_latency_rank{rank}.sqlite" for rank in (0, 1)]
OTHERS = ("runs/detect/weights/best.pt", "staging/data/train.csv", "staging/a.lock", "README.md")
"""Files of others, in folders that are called as those of a store."""
EVERY = 5
"""After so many kills a command is run to its end, and the store held to have nothing left over."""


class Command(NamedTuple):
    """A command: the names of the other runs before and after it, and what it does to a folder."""

    before: set[str]
    after: set[str]
    do: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda _: None


def _store(folder: Path) -> Any:
    from tracekit.store import Store  # noqa: PLC0415 - as below, in the child

    return Store(folder / "store")


def _ingest(folder: Path, reports: list[Path], name: str) -> None:
    import tracekit  # noqa: PLC0415

    processes = 2 if len(reports) > 1 else None
    tracekit.ingest(reports, store=folder / "store", name=name, processes=processes)


def _leave_over(folder: Path) -> None:
    """Leave what ingests have left that were killed at the beginning, and before their commit."""
    [run, *_] = [path for path in (folder / "store" / "runs").iterdir() if "-" in path.name]
    for number in range(20):
        name = f"{run.name.partition('-')[0]}-{number:016x}"
        for left in (folder / "store" / "runs" / name, folder / "store" / "staging" / name):
            shutil.copytree(run, left)
            (left / "run.json").unlink()


def _report(folder: Path) -> None:
    from tracekit.cli import app  # noqa: PLC0415

    words = ["report", "kept", "--store", str(folder / "store"), "-o", str(folder / "page.html")]
    app(words, standalone_mode=False)


def _record(folder: Path) -> None:
    """Become the command, so that it is this process that is killed."""
    waits = [sys.executable, "-c", "import time; time.sleep(0.1)"]
    words = ["record", "--name", "new", "--store", str(folder / "store"), "--", *waits]
    os.chdir(folder)
    os.environ |= {"TRACEKIT_NSYS": str(folder.parent / "nsys"), "PYTHONPATH": str(ROOT)}
    with Path(os.devnull).open("wb") as nowhere:
        for descriptor in (1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    os.execv(sys.executable, [sys.executable, "-m", "tracekit", *words])


COMMANDS = {
    "ingest": Command(set(), {"new"}, lambda folder: _ingest(folder, [OTHER], "new")),
    "ingest of two reports": Command(set(), {"new"}, lambda folder: _ingest(folder, RANKS, "new")),
    "runs remove": Command({"other"}, set(), lambda folder: _store(folder).remove("other")),
    "runs rename": Command(
        {"other"}, {"new"}, lambda folder: _store(folder).rename("other", "new")
    ),
    "runs check --repair": Command(
        {"other"}, {"other"}, lambda folder: _store(folder).check(repair=True),
        lambda folder: (folder / "store" / "catalogue.sqlite").unlink(),
    ),
    "runs gc": Command({"other"}, {"other"}, lambda folder: _store(folder).collect(), _leave_over),
    "report": Command(set(), set(), _report),
    "record": Command(set(), {"new"}, _record),
}  # fmt: skip


def _assert_whole(folder: Path, command: Command, *, is_done: bool) -> None:
    """See that no run is lost or made up, that all can be read, and that others' files stay."""
    store = _store(folder)
    store.check(repair=True)
    found = {run.name for run in store.runs()} - {"kept"}
    assert found == command.after or (not is_done and found == command.before), found
    assert "kept" in {run.name for run in store.runs()}
    for run in store.runs():
        trace = store.open(run)
        assert sum(trace.read(table).height for table in trace.tables)
    for name in OTHERS:
        assert (store.root / name).read_text() == name
    page = folder / "page.html"
    assert not page.exists() or page.read_text().rstrip().endswith("</html>")


def _assert_nothing_left(folder: Path) -> None:
    """See that nothing is left over once an ingest and a collection have been there."""
    _ingest(folder, [KEPT], "kept")
    store = _store(folder)
    store.collect()
    assert store.check() == []
    assert {path.name for path in (store.root / "staging").iterdir()} == {"data", "a.lock"}
    assert len(list((store.root / "runs").iterdir())) == len(store.runs()) + 1


def preload() -> None:
    """Import what takes long and starts no threads, so that children need not."""
    os.fsync = lambda _: None  # what a disk would lose takes long, and no kill loses it
    for name in ("numpy", "polars", "sqlalchemy", "typer", "tracekit.store", "tracekit.sources"):
        importlib.import_module(name)


def _child(do: Callable[[], object]) -> int:
    child = os.fork()
    if not child:
        code = 1
        try:
            do()
            code = 0
        except BaseException:  # noqa: BLE001 - which the parent cannot see
            traceback.print_exc()
        os._exit(code)
    return child


def apart(do: Callable[[], object]) -> float:
    """Do something in a process of its own, and return how long it took."""
    begin = time.monotonic()
    _, status = os.waitpid(_child(do), 0)
    assert status == 0, "a child failed"
    return time.monotonic() - begin


def _killed(do: Callable[[], object], after: float) -> str:
    child = _child(do)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, "a command failed"
    return "killed" if os.WIFSIGNALED(status) else "done before"


def _stores(folder: Path) -> Iterator[Path]:
    """Make the folders that commands begin with: with one run, and with another one, too."""
    for names in (["kept"], ["kept", "other"]):
        place = folder / "-".join(names)
        for name in names:
            apart(lambda name=name, place=place: _ingest(
                place, [KEPT if name == "kept" else OTHER], name))  # fmt: skip
        for name in OTHERS:
            (place / "store" / name).parent.mkdir(parents=True, exist_ok=True)
            (place / "store" / name).write_text(name)
        yield place


def kill(folder: Path, cases: int, only: str = "", seed: int = 22) -> list[dict[str, Any]]:
    """Return by command how often it was done before, and how often it was killed.

    With `only` those commands are tried whose name begins so.
    """
    preload()
    pick = random.Random(seed)
    commands = {name: each for name, each in COMMANDS.items() if name.startswith(only)}
    make_fake_nsys(folder)
    bare, full = _stores(folder)
    place = folder / "tried"
    longest: dict[str, float] = {}
    found: Counter[tuple[str, str]] = Counter()

    def begun(command: Command) -> Callable[[], object]:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(full if command.before else bare, place)
        command.prepare(place)
        return lambda: command.do(place)

    for name, command in commands.items():
        longest[name] = min(apart(begun(command)) for _ in range(2))
    for number in range(cases):
        name = list(commands)[number % len(commands)]
        command = commands[name]
        ended = _killed(begun(command), pick.uniform(0.0, longest[name]))
        found[name, ended] += 1
        whole = partial(_assert_whole, place, command)
        apart(partial(whole, is_done=ended != "killed"))
        if number // len(commands) % EVERY == 0:
            if name != "record" and (ended == "killed" or command.before == command.after):
                apart(partial(_do_again, place, command))
                apart(partial(whole, is_done=True))
            apart(partial(_assert_nothing_left, place))
    return [{"command": name, "ended": how, "times": n} for (name, how), n in sorted(found.items())]


def _do_again(folder: Path, command: Command) -> None:
    """Run a command to its end, unless the kill came after it had done what it does."""
    names = {run.name for run in _store(folder).runs()} - {"kept"}
    if names == command.before:
        command.do(folder)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        json.dump(kill(Path(made), int(sys.argv[1]), *sys.argv[2:]), sys.stdout)
