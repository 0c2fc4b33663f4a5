"""`tracekit record`, with a program that takes the place of nsys, and with nsys where it is."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import polars as pl
import pytest
from cli_helpers import ROOT, command, environment, in_process, tracekit
from fake_nsys import make_fake_nsys
from without_compiler import WITHOUT_COMPILER

import tracekit as tk
from tracekit.cli._record import _steps_of_reports
from tracekit.recording import _calibration, file_name

PRINTING = [sys.executable, "-c", "print('loss 3')"]


@pytest.fixture(autouse=True)
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    program = make_fake_nsys(folder)
    monkeypatch.setenv("TRACEKIT_NSYS", str(program))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return program


@pytest.mark.slow
def test_a_program_is_recorded_ingested_and_broken_down(tmp_path: Path) -> None:
    done = in_process("record", "--name", "first", "--label", "gpus=0", "--", *PRINTING)
    assert done.code == 0, done.stderr
    assert "first · time by stage" in done.stdout
    assert "measured on the host" in done.stdout
    assert "loss 3" in done.stderr
    assert "loss 3" not in done.stdout
    run = tk.open("first")
    assert dict(run.labels) == {"gpus": "0"}
    assert run.breakdown()["busy_ns"].to_list() == [1200, 400]
    assert (tmp_path / "recordings" / "first" / "report.nsys-rep").is_file()


@pytest.mark.slow
def test_its_result_is_a_breakdown_in_any_format() -> None:
    done = tracekit("record", "--format", "json", *PRINTING)
    document = json.loads(done.stdout)
    schema = json.loads((ROOT / "schemas" / "json" / "breakdown.schema.json").read_text())
    jsonschema.validate(document, schema)
    assert document["rows"][0]["ranges"] == 2


@pytest.mark.slow
def test_names_are_the_programs_and_free(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    for expected in ("train", "train-2"):
        done = tracekit("record", "--", sys.executable, script, "--lr", "3")
        assert f"{expected} · time by stage" in done.stdout
    (tmp_path / "recordings" / "train-3").mkdir()
    assert "/train-4/" in tracekit("record", "--dry-run", "--", "python", script).stdout
    module = tracekit("record", "--dry-run", "--", "python", "-u", "-m", "pkg.train", "-x").stdout
    assert "/pkg.train/" in module
    for words in (["-c", "pass"], ["-W", "ignore", "-"]):
        assert "/python/" in tracekit("record", "--dry-run", "--", "python", *words).stdout
    words = ["python", "-X", "dev", "-W", "ignore", "-m", "pkg.other", "-m", "x"]
    assert "/pkg.other/" in tracekit("record", "--dry-run", "--", *words).stdout
    taken = tracekit("record", "--name", "train", "--", *PRINTING)
    assert taken.exit_code == 2
    assert "there is a run 'train' already" in taken.stderr


@pytest.mark.slow
def test_names_of_windows_are_free_too() -> None:
    assert tracekit("record", "--name", "x-1", "--", *PRINTING).exit_code == 0
    taken = tracekit("record", "--every", "9", "--name", "x", "--dry-run", "--", *PRINTING)
    assert taken.exit_code == 2
    assert "there is a run 'x-1' already" in taken.stderr


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([(60, 61, 62), (60, 61, 62)], ["3 steps, 60 to 62"]),
        ([(60, 61, 62), (61,)], ["3 steps, 60 to 62", "1 step, 61 to 61"]),
        ([()], []),
    ],
)
def test_steps_that_ranks_recorded(ranks: list[tuple[int, ...]], told: list[str]) -> None:
    rows = [
        (report, name, domain)
        for report, steps in enumerate(ranks)
        for step in steps
        for name, domain in ((f"iteration {step}", "tracekit"), ("iteration 7", "own"))
    ]
    table = pl.LazyFrame(rows, ["report", "name", "domain"], orient="row").cast(
        {"report": pl.Int64, "name": pl.String, "domain": pl.String}
    )
    assert _steps_of_reports(SimpleNamespace(table=lambda _: table)) == told  # type: ignore[arg-type]


@pytest.mark.slow
def test_ranks_become_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "srun"
    launcher.write_text(
        "#!/bin/sh\nshift 2\nfor SLURM_PROCID in 0 1; do\n"
        'export SLURM_PROCID; "$@" || exit 1\ndone\n'
    )
    launcher.chmod(0o755)
    done = tracekit("record", "--name", "two", "--", launcher, "-n", "2", *PRINTING)
    assert done.exit_code == 0, done.stderr
    found = tk.open("two").breakdown(by="rank")  # 200 ns of 1,800 lie between the steps
    assert found.rows() == [(0, 4, 1600, 16 / 36), (1, 4, 1600, 16 / 36)]


def test_a_dry_run_does_nothing(tmp_path: Path, nsys: Path) -> None:
    done = tracekit("record", "--dry-run", "--memory-usage", "--", "python", "a b.py")
    folder = tmp_path / "recordings" / file_name("a b")
    assert done.stdout == (
        f"mkdir -p {folder} && {nsys} profile --trace=cuda,nvtx --cuda-memory-usage=true"
        f" --sample=none --cpuctxsw=process-tree --output={folder}/report python 'a b.py'\n"
    )
    assert not (tmp_path / "recordings").exists()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no program to record"),
        (["--trace", "cuda,x", "--", "a"], "cannot trace 'x'"),
        (["--nsys", "/no/such", "--", "a"], "there is no /no/such here to record with"),
        (["--study", "x"], "no study 'x'"),
        (["--study", "cpu", "--", "a"], "leave out the program"),
        (["--cpu", "--", "a"], "--where, --set and --cpu are for a study"),
        (["--study", "cpu", "--times", "2"], "leave out the program, --name, --calibrate, --times"),
        (["--times", "2", "--calibrate", "--", "a"], "--calibrate keeps no recording"),
        (["--every", "9", "--calibrate", "--", "a"], "--calibrate keeps no recording"),
        (["--every", "9", "--times", "2", "--", "a"], "windows are of one recording"),
        (["--every", "3", "--", "a"], "windows of 3 steps do not begin every 3 steps"),
        (["--for", "3", "--", "a"], "--for is the length of windows: give the period with --every"),
        (["--against", "'", "--", "a"], "(No closing quotation)"),
        (["--against", "", "--", "a"], "there is no program to record"),
        (["--times", "0", "--", "a"], "should be greater than or equal to 1"),
        (["--label", "x", "--", "a"], "label 'x' is not of the form"),
        (["--label", "=x", "--", "a"], "label '=x' is not of the form"),
        (["--name", "a/b", "--", "touch", "ran"], "the run name 'a/b' has a slash"),
        (["--wait", "none", "--", "touch", "ran"], "--wait takes no 'none'"),
        (["--rules", "nope.toml", "--", "touch", "ran"], "nope.toml"),
    ],
)
def test_what_cannot_be_recorded(words: list[str], message: str) -> None:
    done = tracekit("record", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stdout == ""
    assert not Path("ran").exists()


def test_two_programs_are_recorded_in_turn() -> None:
    words = ["--times", "3", "--against", "old 'a b'", "--name", "x", "--", "new"]
    lines = tracekit("record", "--dry-run", *words).stdout.splitlines()
    asked = [(line.rsplit("/")[-2], line.split("/report ")[1]) for line in lines]
    old = "old 'a b'"
    assert asked == [
        ("x-a-1", old), ("x-b-1", "new"), ("x-b-2", "new"),
        ("x-a-2", old), ("x-a-3", old), ("x-b-3", "new"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "name"), [("python old.py", "old-vs-new"), ("old/new.py --quick", "new"),
     ("--forgotten", "forgotten-vs-new")],
)  # fmt: skip
def test_two_programs_give_their_names_to_the_recordings(old: str, name: str) -> None:
    asked = tracekit("record", "--dry-run", "--times", "1", "--against", old, "--", "new.py")
    paths = [line.split("/report ")[0] for line in asked.stdout.splitlines()]
    found = [path.rsplit("/", 1)[1] for path in paths]
    assert found == [f"{name}-a-1", f"{name}-b-1"]


@pytest.mark.slow
def test_several_recordings_of_two_programs_are_compared(tmp_path: Path) -> None:
    old = f"{sys.executable} -c 'print(1)'"
    done = tracekit("record", "--times", "2", "--against", old, "--name", "x", "--", *PRINTING)
    assert done.exit_code == 0, done.stderr
    assert "950.00 ns in A (2 recordings), 950.00 ns in B (2 recordings): no ch" in done.stdout
    assert "recording 4 of 4" in done.stderr
    labels = {name: dict(tk.open(name).labels) for name in ("x-a-1", "x-b-1", "x-b-2", "x-a-2")}
    assert labels["x-b-2"] == {"series": "x", "side": "b", "recording": "3"}
    taken = tracekit("record", "--times", "2", "--against", old, "--name", "x", "--", *PRINTING)
    assert taken.exit_code == 2
    assert "there is a run 'x-a-1' already" in taken.stderr
    later = tracekit("compare", "--where", "side=a", "--against-where", "side=b")
    assert "in B (2 recordings): no change" in later.stdout


@pytest.mark.slow
def test_a_series_that_fails_says_what_is_there_and_how_it_is_compared(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "raise SystemExit(7)"]
    old = f"{sys.executable} -c 'print(1)'"
    done = tracekit("record", "--times", "2", "--against", old, "--name", "x", "--", *failing)
    assert done.exit_code == 7
    assert "1 of 4 recordings are in the store" in done.stderr
    compared = "`tracekit compare --where series=x --where side=a --against-where series=x"
    assert compared in done.stderr
    assert list(tk.open("x-a-1").labels) == ["series", "side", "recording"]


@pytest.mark.slow
def test_several_recordings_of_one_program_are_listed_in_their_order(tmp_path: Path) -> None:
    done = tracekit("record", "--times", "2", "--name", "python", "--format", "json", *PRINTING)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["run"] for row in rows] == ["python-1", "python-2"]
    assert [row["step_ns"] for row in rows] == [rows[0]["step_ns"]] * 2


@pytest.mark.slow
def test_a_program_that_fails_makes_no_run(tmp_path: Path) -> None:
    done = tracekit("record", "--name", "x", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.exit_code == 7
    assert "ended with code 7" in done.stderr
    assert json.loads(tracekit("runs", "--format", "json").stdout)["rows"] == []


@pytest.mark.slow
def test_a_program_without_stages_makes_a_run_all_the_same(nsys: Path) -> None:
    make_fake_nsys(nsys.parent, staged=False)
    done = tracekit("record", "--name", "x", "--", *PRINTING)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "ingested as x; its breakdown failed: this run has neither" in done.stderr
    assert tk.open("x").table("host").collect().height == 1


STUDY = """
version = 1
program = ["{python}", "-c", "import sys; sys.exit({code})"]
[grid]
code = [0, 5]
[fixed]
device = "cpu"
"""


@pytest.mark.slow
def test_a_study_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "codes.toml"
    path.write_text(STUDY)
    first = tracekit("record", "--study", path, "--format", "json")
    assert first.exit_code == 1
    rows = json.loads(first.stdout)["rows"]
    assert rows[0]["status"] == "recorded"
    assert rows[1]["status"].startswith("failed: ")
    assert rows[1]["status"].endswith("ended with code 5")
    labels = {"study": "codes", "code": "0", "fixed": "device=cpu"}
    assert dict(tk.open("codes-code=0").labels) == labels
    other = tracekit(
        "record", "--study", path, "--where", "code=0", "--set", "lr=3", "--format", "json"
    )
    assert other.exit_code == 1
    assert json.loads(other.stdout)["rows"][0]["status"] == "failed: recorded with device=cpu"
    # A recording that was not ingested is ingested, and not made again.
    tracekit("runs", "remove", "codes-code=0")
    again = tracekit("record", "--study", path, "--where", "code=0", "--format", "json")
    assert json.loads(again.stdout)["rows"][0]["status"] == "recorded"
    assert "recording: " not in again.stderr
    third = tracekit("record", "--study", path, "--where", "code=0")
    assert "recorded already" in third.stdout
    assert "none of its configurations" not in third.stderr
    path.write_text(STUDY.replace("[0, 5]", "[5]"))
    changed = tracekit("record", "--study", path, "--dry-run")
    assert "none of its configurations: 1, such as codes-code=0; tables" in changed.stderr


@pytest.mark.slow
def test_the_lines_of_a_dry_run_can_be_run(tmp_path: Path) -> None:
    path = tmp_path / "a study.toml"
    path.write_text(STUDY)
    done = tracekit("record", "--study", path, "--dry-run", "--format", "json")
    for row, code in zip(json.loads(done.stdout)["rows"], (0, 5), strict=True):
        assert subprocess.run(["sh", "-c", row["status"]], check=False).returncode == code
        assert (tmp_path / "recordings" / row["run"] / "report.nsys-rep").is_file()


@pytest.mark.slow
def test_a_calibration_says_a_range_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _calibration.PAIRS == 6
    monkeypatch.setattr(_calibration, "PAIRS", 2)
    done = tracekit("record", "--calibrate", "--", *PRINTING)
    assert done.exit_code == 0, done.stderr
    assert "makes the whole program" in done.stdout
    assert "(2 pairs of runs, without and with nsys" in done.stdout
    assert "run 5 of 5" in done.stderr
    assert not (tmp_path / "recordings").exists()
    assert json.loads(tracekit("runs", "--format", "json").stdout)["rows"] == []


@pytest.mark.slow
def test_an_interrupt_ends_a_study(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    slow = "import time; time.sleep({code})"
    path.write_text(STUDY.replace("import sys; sys.exit({code})", slow).replace("0, 5", "60, 61"))
    with subprocess.Popen(
        command("record", "--study", path), stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stderr is not None
        assert "recording: " in process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "recording: " not in said


@pytest.mark.slow
def test_values_that_look_alike_are_different_recordings(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    path.write_text(STUDY.replace("code = [0, 5]", 'code = ["0 or 0", "0/1", "0_1", "0:1"]'))
    done = tracekit("record", "--study", path, "--format", "json")
    rows = {row["code"]: row for row in json.loads(done.stdout)["rows"]}
    assert len({row["run"] for row in rows.values()}) == 4
    assert rows["0 or 0"]["status"] == "recorded"
    assert rows["0:1"]["status"].endswith("ended with code 1")  # a syntax error, of its own


def test_a_study_of_gpus_records_what_its_tables_ask_for(
    tmp_path: Path, nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = nsys.with_name("nvidia-smi")
    smi.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    words = ("record", "--study", "dgx1", "--where", "network=lenet", "--dry-run", "--format")
    rows = json.loads(tracekit(*words, "json").stdout)["rows"]
    (first, *_) = [row["status"] for row in rows if row["gpus"] == 1]
    for each in ("--cuda-memory-usage=true", "NCCL_DEBUG=INFO", "nvidia-smi topo -m", "memory.csv"):
        assert each in first
    cpu = json.loads(tracekit(*words, "json", "--cpu").stdout)["rows"]
    assert not any("nvidia-smi" in row["status"] for row in cpu)


def test_a_study_leaves_out_what_the_machine_does_not_allow() -> None:
    done = tracekit("record", "--study", "dgx1", "--where", "network=lenet", "--where", "batch=16")
    assert done.exit_code == 0
    # P2P, NCCL and DDP, in strong and in weak scaling.
    assert done.stdout.count("left out: needs 8 GPUs, and there are 0") == 6
    cpu = tracekit("record", "--study", "dgx1", "--cpu", "--dry-run", "--format", "json")
    rows = json.loads(cpu.stdout)["rows"]
    assert {row["status"] for row in rows if row["method"] == "nccl"} == {
        "left out: nccl needs GPUs"
    }
    assert all("--device cpu" in row["status"] for row in rows if row["method"] == "p2p")


REAL = shutil.which("nsys")


def _recorded(*words: object) -> tuple[str, Any]:
    """Record under a name that is returned; nsys at times loses its own agent, when busy."""
    for number in range(3):
        name = f"train{number}"
        done = in_process("record", "--name", name, *words)
        is_lost = "Connection to Agent lost" in done.stderr
        if not is_lost and not done.code:
            break
    if is_lost:
        pytest.skip("nsys lost its agent in each of three tries")
    return name, done


@pytest.mark.slow
def test_a_program_that_nothing_is_recorded_of_keeps_its_code(nsys: Path) -> None:
    make_fake_nsys(nsys.parent, staged=None)
    done = tracekit("record", "--name", "x", "--", *PRINTING)
    assert done.exit_code == 0, done.stderr
    assert "no GPU work and no NVTX ranges in" in done.stderr
    assert "the recording is in recordings/x" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("one_nsys")
@pytest.mark.skipif(REAL is None, reason="no nsys on the path")
def test_with_a_real_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever version of the package nvtx is here, processes and the capture are recorded."""
    monkeypatch.delenv("TRACEKIT_NSYS")
    script = tmp_path / "train.py"
    script.write_text(
        "import nvtx, time\n"
        "for n in range(3):\n"
        "    with nvtx.annotate(f'iteration {n}'):\n"
        "        with nvtx.annotate('FP'):\n"
        "            time.sleep(0.01)\n"
        "        with nvtx.annotate('WU'):\n"
        "            time.sleep(0.005)\n"
    )
    name, done = _recorded("--trace", "nvtx,osrt", "--format", "json", sys.executable, script)
    report = tmp_path / "recordings" / name / "report.nsys-rep"
    assert report.is_file(), done.stderr
    if "neither GPU work nor NVTX ranges" in done.stderr:
        pytest.skip("this nsys does not hear this version of the package nvtx")
    rows = {row["stage"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["FP"]["ranges"] == 3
    assert rows["WU"]["ranges"] == 3
    # No shorter than it slept, and in seconds rather than in some other unit of time.
    assert 30_000_000 <= rows["FP"]["busy_ns"] < 30_000_000_000
    assert 15_000_000 <= rows["WU"]["busy_ns"] < 30_000_000_000


@pytest.mark.slow
@pytest.mark.nightly  # by day what nsys is told, and a whole program that it records
@pytest.mark.usefixtures("one_nsys")
@pytest.mark.skipif(REAL is None, reason="no nsys on the path")
def test_windows_of_a_long_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 350 steps those from 150 and from 300 on: exactly three each, one series."""
    monkeypatch.delenv("TRACEKIT_NSYS")
    script = tmp_path / "train.py"
    script.write_text(
        f"{WITHOUT_COMPILER}import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(350):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    name, done = _recorded("--every", "150", "--trace", "nvtx", sys.executable, script)
    assert done.code == 0, done.stderr
    assert "steps are known from optimizers" in done.stderr
    assert f"{name}-2: 3 steps, 300 to 302" in done.stderr
    runs = {run.labels["window"]: run for run in tk.select_runs(where={"series": name})}
    steps = {
        window: sorted(each for each in run.table("ranges").collect()["name"].unique()
                       if str(each).startswith("iteration"))
        for window, run in runs.items()
    }  # fmt: skip
    assert steps == {
        str(window): [f"iteration {150 * window + n}" for n in range(3)] for window in (1, 2)
    }


TRAINING = f"""{WITHOUT_COMPILER}
import os, torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
assert "my hooks" in sys.modules["_tracekit_annotation"].__file__
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_ring_without_nsys_from_hooks_that_were_copied(tmp_path: Path) -> None:
    done = tracekit("record", "--print-hook", "--ring", "live.ring", "--hook-folder", "my hooks")
    assert done.exit_code == 0, done.stderr
    assert not (tmp_path / "recordings").exists()
    ended = subprocess.run(
        ["sh", "-c", f'{done.stdout}\nexec "$0" -c "$1"', sys.executable, TRAINING],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert ended.stderr == ""
    answer = tracekit("breakdown", "live.ring", "--by", "iteration", "--format", "json")
    assert [row["iteration"] for row in json.loads(answer.stdout)["rows"]] == [0, 1, 2]
    assert "by the host's clock alone" in tracekit("breakdown", "live.ring").stdout


def test_a_ring_is_of_an_annotated_program() -> None:
    done = tracekit("record", "--ring", "live.ring", "--", *PRINTING)
    assert done.exit_code == 2
    assert "add --annotate" in done.stderr
