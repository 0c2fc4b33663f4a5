"""Every command on a store that is hostile, in a folder full of files of others.

What is compared is the whole tree before and after: names, types, modes, links and contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import add, never
from typer.main import get_command
from typer.testing import CliRunner, Result

import tracekit as tk
from tracekit.cli import app
from tracekit.errors import StoreError
from tracekit.runs import DECLARED
from tracekit.store import Store
from tracekit.store._staging import MARK
from tracekit.store._store import read_id

pytestmark = pytest.mark.usefixtures("samples_read_once")

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRACE, OTHER = SAMPLES / "p2p_2gpu_start_end.sqlite", SAMPLES / "p2p_4gpu_star.sqlite"
OWN = "0123abcd-0123456789abcdef"
"""A name of the form that a store gives its folders."""

OTHERS = (
    "README.md", "train.py", "store.json.bak", "catalogue.csv", "data/first-batch/0.npy",
    "staging/data/train.csv", "staging/model.lock", "staging/old.dropped/weights.bin",
    "staging/first-touch/a.txt", f"staging/{OWN}/notes.txt", f"staging/{OWN}.dropped/notes.txt",
    "runs/Nov22_10-11-12_host/events.out.tfevents.1", "runs/detect/train/weights/best.pt",
    "runs/detect/train/args.yaml", "runs/segment/results.csv", "runs/0/ops/00000.parquet",
    "runs/run.json", f"runs/{OWN}/results.csv", "runs/detect/run.json",
)  # fmt: skip
"""Files of a project whose other tools write to `runs/` and `staging/`, too."""

COMMANDS: dict[str, Sequence[str]] = {
    **{name.replace("_", "-"): ["p2p"] for name in DECLARED if name != "straggler_cost"},
    "ingest": [str(OTHER)],
    "record": ["--", "true"],
    "diagnose": ["p2p"],
    "whatif": ["p2p", "--loader", "2x"],
    "compare": ["p2p", "p2p"],
    "gate": ["p2p", "p2p"],
    "study dgx1": ["p2p"],
    "project": ["p2p"],
    "hang": ["rank0.log", "--run", "p2p"],
    "nccl-inspector": ["rank0.log", "--run", "p2p"],
    "report": ["p2p", "-o", "../out.html"],
    "export": ["p2p", "-o", "../out.json"],
    "sql": ["p2p", "SELECT 1"],
    "runs list": [],
    "runs show": ["p2p"],
    "runs rename": ["p2p", "other"],
    "runs remove": ["p2p"],
    "runs check": ["--repair"],
    "runs gc": [],
    "runs share": ["--private"],
    "topology show": ["p2p"],
    "topology check": ["p2p"],
    "view": ["p2p", "no-run", "--no-open"],  # so that nothing is served
}
"""What every command that takes a store is asked."""


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return all that is below a folder, with what would tell of any change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
        held: object = None
        if path.is_symlink():
            held = path.readlink()
        elif path.is_file():
            held = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (kind, mode, status.st_uid, held)
    return found


def fill(folder: Path) -> None:
    for name in OTHERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} is of someone else\n")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run, `p2p`."""
    root = tmp_path_factory.mktemp("sound") / "store"
    tk.ingest(TRACE, name="p2p", store=root)
    return root


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a project full of files, in which commands run, and a folder beside it."""
    for name in ("TRACEKIT_STORE", "TRACEKIT_CATALOG"):
        monkeypatch.delenv(name, raising=False)
    world = tmp_path / "world"
    for name in ("project", "precious"):
        fill(world / name)
    monkeypatch.chdir(world / "project")
    monkeypatch.setenv("TRACEKIT_NSYS", str(tmp_path / "no-nsys"))  # which would write a report
    return world


def asked(command: str, *words: object) -> Result:
    return CliRunner().invoke(app, [*command.split(), *map(str, words)])


def refused(command: str, *words: object) -> Result:
    """Ask a command which is to say in one line why it does nothing."""
    done = asked(command, *words)
    assert done.exit_code in (1, 2, 3), (command, done.exit_code, done.output)
    assert len(done.stderr.splitlines()) <= 1 + (command == "record"), (command, done.stderr)
    return done


def all_commands() -> Iterator[str]:
    def names(command: object, before: str = "") -> Iterator[str]:
        for name, each in getattr(command, "commands", {}).items():
            yield from names(each, f"{before}{name} ")
        if any(option.name == "store" for option in getattr(command, "params", ())):
            yield before.strip()

    return names(get_command(app))


def test_every_command_that_takes_a_store_is_tried() -> None:
    assert set(all_commands()) == set(COMMANDS)


class TestNoStore:
    """A folder that is no store, though it has folders that are called as those of one."""

    @pytest.mark.slow
    def test_no_command_touches_it(self, world: Path) -> None:
        before = tree(world)
        for command, words in COMMANDS.items():
            said = refused(command, "--store", ".", *words).stderr
            assert f"--store {world / 'project' / '.tracekit'}" in said, (command, said)
        assert tree(world) == before

    def test_what_is_named_instead_is_made_and_touches_nothing_else(self, world: Path) -> None:
        before = tree(world)
        done = asked("ingest", OTHER, "--store", "./.tracekit")
        assert done.exit_code == 0, done.output
        assert asked("runs gc").exit_code == 0
        assert asked("runs remove", "@latest").exit_code == 0
        shutil.rmtree(world / "project" / ".tracekit")
        assert tree(world) == before

    def test_the_library_makes_nothing_in_it_either(self, world: Path) -> None:
        before = tree(world)
        with pytest.raises(StoreError, match="is not a store"):
            add(Store(world / "project"), make=never)
        assert tree(world) == before

    @pytest.mark.parametrize("there", ["runs", "staging"])
    def test_a_folder_of_others_alone_is_enough(self, there: str, world: Path) -> None:
        root = world / there
        fill(root / there)
        before = tree(world)
        refused("ingest", OTHER, "--store", root)
        refused("runs gc", "--store", root)
        assert tree(world) == before

    def test_an_empty_folder_and_one_that_is_not_there_may_become_one(self, world: Path) -> None:
        (world / "empty").mkdir()
        for name in ("empty", "new"):
            assert asked("ingest", OTHER, "--store", world / name).exit_code == 0

    def test_what_an_interrupted_first_ingest_has_left_is_no_obstacle(self, world: Path) -> None:
        root = world / "begun"
        (root / "runs").mkdir(parents=True)
        staged = root / "staging" / "first-0123456789abcdef"
        (staged / "0").mkdir(parents=True)
        (staged / MARK).touch()
        staged.with_name(f"{staged.name}.lock").touch()
        (root / "staging" / "first-00000000000000ff").mkdir()
        assert asked("ingest", OTHER, "--store", root).exit_code == 0
        assert list((root / "staging").iterdir()) == []

    def test_a_store_that_is_not_there_is_not_made_by_questions(self, world: Path) -> None:
        before = tree(world)
        for command, words in COMMANDS.items():
            if command not in ("ingest", "record"):
                asked(command, "--store", world / "new", *words)
        assert tree(world) == before


OTHERWISE = {"ingest", "record", "breakdown", "compare", "gate", "study", "report", "export", "sql"}
ALIKE = [
    name
    for name in COMMANDS
    if name not in OTHERWISE and not name.startswith(("runs ", "topology "))
]
"""Questions to one run that reach it as a breakdown does."""


class TestFilesOfOthersInAStore:
    @pytest.fixture
    def root(self, sound: Path, world: Path) -> Path:
        """A store in which there are such folders, and what an interrupted ingest has left."""
        root = Path(shutil.copytree(sound, world / "mixed"))
        fill(root)
        return root

    @pytest.mark.slow
    @pytest.mark.parametrize("left_out", [ALIKE, pytest.param((), marks=pytest.mark.nightly)])
    def test_no_command_touches_them(
        self, root: Path, world: Path, left_out: Collection[str]
    ) -> None:
        before = tree(world)
        for command, words in COMMANDS.items():
            if command not in ("runs rename", "runs remove", "record", *left_out):
                asked(command, "--store", root, *words)
        asked("runs rename", "p2p", "q", "--store", root)
        assert asked("runs remove", "q", "--store", root).exit_code == 0
        after = tree(world)
        for name, held in before.items():
            if not name.startswith("mixed/") or name.removeprefix("mixed/") in OTHERS:
                assert after[name] == held
        beyond = after.keys() - before.keys() - {"out.html", "out.json"}
        assert all(
            re.match("mixed/(runs|staging)/[0-9a-f]{8}-[0-9a-f]{16}", each) for each in beyond
        )

    def test_what_is_left_over_is_named_and_goes(self, root: Path) -> None:
        catalogue = folder(root).name.partition("-")[0]
        left = [root / "runs" / f"{catalogue}-{1:016x}", root / "staging" / f"first-{2:016x}"]
        for path in left:
            (path / "0").mkdir(parents=True)
            (path / MARK).touch()
        before = tree(root)
        told = asked("runs gc", "--dry-run", "--store", root)
        assert tree(root) == before
        done = asked("runs gc", "--store", root)
        for path in left:
            assert not path.exists()
            assert str(path) in told.output
            assert str(path) in done.output
        assert asked("runs gc", "--store", root).output == "nothing was left over\n"
        gone = {str(path.relative_to(root)) for path in left}
        assert {name for name in before if not name.startswith(tuple(gone))} == tree(root).keys()

    def test_removing_a_run_names_what_is_deleted(self, root: Path) -> None:
        path = folder(root)
        assert str(path) in asked("runs remove", "p2p", "--store", root).output
        assert not path.exists()


def folder(root: Path) -> Path:
    """Return the folder of the only run."""
    [(name,)] = rows(root, "SELECT folder FROM tracekit_runs")
    return root / "runs" / str(name)


def rows(root: Path, *statements: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    with closing(sqlite3.connect(root / "catalogue.sqlite")) as connection:
        for statement in statements:
            found = connection.execute(statement).fetchall()
        connection.commit()
    return found


def linked(path: Path, target: Path | str) -> None:
    """Put a link in the place of something."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def in_catalogue(statement: str) -> Callable[[Path], object]:
    return lambda root: rows(root, statement.format(precious=root.parents[1] / "precious"))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a run's folder is elsewhere": in_catalogue("UPDATE tracekit_runs SET folder = '{precious}'"),
    "a run's folder is above": in_catalogue(
        "UPDATE tracekit_runs SET folder = '../../../precious'"
    ),
    "a run's folder is the store": in_catalogue("UPDATE tracekit_runs SET folder = '..'"),
    "a run's folder is nothing": in_catalogue("UPDATE tracekit_runs SET folder = ''"),
    "the catalogue's id leads out": in_catalogue(
        "UPDATE tracekit_meta SET value = '../../../precious/x' WHERE key = 'id'"
    ),
    "runs is a link": lambda root: linked(root / "runs", root.parents[1] / "precious" / "runs"),
    "staging is a link": lambda root: linked(
        root / "staging", root.parents[1] / "precious" / "staging"
    ),
    "a run's folder is a link": lambda root: linked(folder(root), root.parents[1] / "precious"),
    "a run's tables are a link": lambda root: linked(
        folder(root) / "0", root.parents[1] / "precious"
    ),
    "a part is a link": lambda root: linked(
        folder(root) / "0" / "ops" / "00000.parquet", root.parents[1] / "precious" / "train.py"
    ),
    "the id is a link": lambda root: linked(
        root / "store.json", root.parents[1] / "precious" / "train.py"
    ),
    "the id is a link to nothing": lambda root: linked(root / "store.json", "nothing"),
    "the catalogue is a link": lambda root: linked(
        root / "catalogue.sqlite", root.parents[1] / "precious" / "train.py"
    ),
    "the catalogue is a link to nothing": lambda root: linked(
        root / "catalogue.sqlite", root.parents[1] / "precious" / "new.sqlite"
    ),
    "the journal is a link": lambda root: linked(
        root / "catalogue.sqlite-journal", root.parents[1] / "precious" / "train.py"
    ),
    "the id is a pipe": lambda root: piped(root / "store.json"),
    "the catalogue is a pipe": lambda root: piped(root / "catalogue.sqlite"),
    "the list of parts is a pipe": lambda root: piped(folder(root) / "0" / "parts.json"),
    "the checksums are a pipe": lambda root: piped(folder(root) / "0" / "checks.json"),
    "the copy of a row is a pipe": lambda root: piped(folder(root) / "run.json"),
    "a part is a pipe": lambda root: piped(folder(root) / "0" / "ops" / "00000.parquet"),
    "runs is a pipe": lambda root: (shutil.rmtree(root / "runs"), piped(root / "runs")),
}  # fmt: skip


def beyond(world: Path) -> dict[str, tuple[object, ...]]:
    """Return what is outside of the store, but for what commands were told to write."""
    told = (".tracekit", "out.html", "out.json")
    return {name: held for name, held in tree(world).items() if not any(x in name for x in told)}


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [ALIKE, pytest.param((), marks=pytest.mark.nightly)])
@pytest.mark.parametrize("hostility", HOSTILE)
def test_a_hostile_store_reaches_nothing_outside(
    hostility: str, left_out: Collection[str], sound: Path, world: Path
) -> None:
    root = Path(shutil.copytree(sound, world / "project" / ".tracekit"))
    HOSTILE[hostility](root)
    outside = beyond(world)
    for command in (name for name in COMMANDS if name not in left_out):
        done = asked(command, *COMMANDS[command])
        assert done.exit_code in (0, 1, 2, 3), (command, done.exit_code, done.output)
        assert len(done.stderr.splitlines()) <= 1 + (command == "record"), (command, done.stderr)
    assert beyond(world) == outside


@pytest.mark.parametrize("planted", ["run.json", MARK])
def test_a_link_that_is_written_to_is_replaced_and_not_followed(
    planted: str, sound: Path, world: Path
) -> None:
    root = Path(shutil.copytree(sound, world / "store"))
    linked(folder(root) / planted, world / "precious" / "train.py")
    before = tree(world / "precious")
    assert asked("runs rename", "p2p", "q", "--store", root).exit_code == 0
    assert asked("runs check", "--repair", "--store", root).exit_code == 0
    assert asked("runs remove", "q", "--store", root).exit_code == 0
    assert tree(world / "precious") == before


def test_locks_that_are_links_or_pipes_are_left_alone(sound: Path, world: Path) -> None:
    root = Path(shutil.copytree(sound, world / "store"))
    staging = root / "staging"
    (staging / f"first-{1:016x}.lock").symlink_to(world / "precious" / "new.txt")
    (staging / f"first-{2:016x}.lock").symlink_to(world / "precious" / "train.py")
    os.mkfifo(staging / f"first-{3:016x}.lock")
    (staging / f"first-{4:016x}").symlink_to(world / "precious")
    before = tree(world)
    assert asked("runs gc", "--store", root).exit_code == 0
    assert tree(world) == before
    assert asked("ingest", OTHER, "--store", root).exit_code == 0
    assert {f"precious/{name}": held for name, held in tree(world / "precious").items()} == {
        name.removesuffix("/."): held
        for name, held in before.items()
        if name.startswith("precious/")
    } | {"precious/.": before["precious"]}


class TestOwner:
    """A store that is found on the way upward, of another user."""

    @pytest.fixture
    def root(self, sound: Path, world: Path) -> Path:
        return Path(shutil.copytree(sound, world / ".tracekit"))

    @pytest.fixture
    def _as_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)

    @pytest.mark.usefixtures("_as_another")
    def test_it_is_not_used_by_any_command(self, root: Path, world: Path) -> None:
        before = tree(world)
        for command, words in COMMANDS.items():
            said = refused(command, *words).stderr
            assert "belongs to" in said, (command, said)
            assert f"--store {root}" in said
        assert tree(world) == before

    @pytest.mark.usefixtures("_as_another")
    def test_it_is_used_where_it_is_named(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert asked("runs show", "p2p", "--store", root).exit_code == 0
        monkeypatch.setenv("TRACEKIT_STORE", str(root))
        assert asked("runs show", "p2p").exit_code == 0

    def test_ones_own_is_used(self, root: Path) -> None:
        assert asked("runs show", "p2p").exit_code == 0
        assert root.is_dir()

    def test_root_uses_that_of_the_owner_of_the_working_directory(
        self, root: Path, world: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.stat

        def stat_of(path: object, *rest: object, **options: object) -> object:
            status = real(path, *rest, **options)  # type: ignore[arg-type,call-overload]
            owner = owners.get(str(path))
            return status if owner is None else os.stat_result((*status[:4], owner, *status[5:]))

        project = world / "project"
        owners = {str(project): 1000, str(root): 1000}
        monkeypatch.setattr(os, "stat", stat_of)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert asked("runs show", "p2p").exit_code == 0
        owners[str(project)] = 1001
        assert "belongs to" in refused("runs show", "p2p").stderr

    def test_folders_on_the_way_that_cannot_be_looked_into_hold_none(
        self, world: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = Path.is_dir

        def is_dir(path: Path) -> bool:
            if path == world / ".tracekit":
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        monkeypatch.setattr(Path, "is_dir", is_dir)
        assert Store.discover().root == world / "project" / ".tracekit"


class TestModes:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_files_are_their_owners_whatever_the_umask(self, umask: int, tmp_path: Path) -> None:
        before = os.umask(umask)
        try:
            tk.ingest(TRACE, name="p2p", store=tmp_path / "store")
            Store(tmp_path / "store").rename("p2p", "q")
        finally:
            os.umask(before)
        found = {held[:2] for held in tree(tmp_path / "store").values()}
        assert found == {(stat.S_IFDIR, 0o700), (stat.S_IFREG, 0o600)}

    def test_a_store_is_shared_with_a_group_and_made_private_again(
        self, sound: Path, tmp_path: Path
    ) -> None:
        root = Path(shutil.copytree(sound, tmp_path / "store"))
        identity = read_id(Store(root)._folders)
        group = os.getegid()
        done = asked("runs share", "--group", group, "--store", root)
        assert done.exit_code == 0, done.output
        assert json.loads((root / "store.json").read_text())["group"] == str(group)
        assert asked("ingest", OTHER, "--name", "other", "--store", root).exit_code == 0
        assert asked("runs rename", "other", "q", "--store", root).exit_code == 0
        shared = {(stat.S_IFDIR, 0o2770), (stat.S_IFREG, 0o660)}
        assert {held[:2] for held in tree(root).values()} == shared
        assert read_id(Store(root)._folders) == identity
        assert asked("runs share", "--private", "--store", root).exit_code == 0
        assert asked("ingest", TRACE, "--as", "inference", "--store", root).exit_code == 0
        private = {(stat.S_IFDIR, 0o700), (stat.S_IFREG, 0o600)}
        assert {held[:2] for held in tree(root).values()} == private
        assert Store(root).check() == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
    def test_what_root_adds_to_the_store_of_another_is_that_users(
        self, sound: Path, world: Path
    ) -> None:
        root = Path(shutil.copytree(sound, world / "project" / ".tracekit"))
        for path in (world / "project", root, *root.rglob("*")):
            os.chown(path, 12345, 12346)
        assert asked("ingest", OTHER, "--name", "other").exit_code == 0
        assert asked("runs", "rename", "p2p", "q").exit_code == 0
        assert {(path.stat().st_uid, path.stat().st_gid) for path in root.rglob("*")} == {
            (12345, 12346)
        }

    def test_a_shared_store_whose_id_is_lost_is_shared_once_it_is_mended(
        self, sound: Path, tmp_path: Path
    ) -> None:
        root = Path(shutil.copytree(sound, tmp_path / "store"))
        Store(root).share(str(os.getegid()))
        before = tree(root)
        said = json.loads((root / "store.json").read_text())
        (root / "store.json").write_text("{")
        Store(root).check(repair=True)
        assert json.loads((root / "store.json").read_text()) == said
        assert tree(root) == before

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--group", "no-such-group"], "no-such-group"),
            (["--group", "1", "--private"], "--group"),
            ([], "--group"),
        ],
    )
    def test_sharing_with_nobody_known_changes_nothing(
        self, words: list[str], said: str, sound: Path, tmp_path: Path
    ) -> None:
        root = Path(shutil.copytree(sound, tmp_path / "store"))
        before = tree(root)
        assert said in refused("runs share", *words, "--store", root).stderr
        assert tree(root) == before

    def test_only_its_owner_shares_a_store(
        self, sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = Path(shutil.copytree(sound, tmp_path / "store"))
        before = tree(root)
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert "belongs to" in refused("runs share", "--private", "--store", root).stderr
        assert tree(root) == before

    def test_sharing_touches_nothing_of_others(self, sound: Path, world: Path) -> None:
        root = Path(shutil.copytree(sound, world / "store"))
        fill(root)
        (folder(root) / "link").symlink_to(world / "precious" / "train.py")
        before = tree(world)
        assert asked("runs share", "--group", os.getegid(), "--store", root).exit_code == 0
        after = tree(world)
        others = [f"store/{name}" for name in OTHERS]
        assert {name: after[name] for name in others} == {name: before[name] for name in others}
        assert after["precious/train.py"] == before["precious/train.py"]


def test_a_store_that_is_a_link_itself_is_one(sound: Path, world: Path) -> None:
    shutil.copytree(sound, world / "disk")
    (world / "project" / ".tracekit").symlink_to(world / "disk")
    assert asked("runs show", "p2p").exit_code == 0
    assert asked("ingest", OTHER).exit_code == 0


def test_a_store_whose_id_is_gone_says_how_it_is_mended(sound: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(sound, tmp_path / "store"))
    (root / "store.json").unlink()
    with pytest.raises(StoreError, match="check --repair"):
        Store(root).runs()
    Store(root).check(repair=True)
    assert [run.name for run in Store(root).runs()] == ["p2p"]
