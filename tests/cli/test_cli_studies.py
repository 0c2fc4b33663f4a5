"""`tracekit compare`, `study`, `scaling`, `overhead`, `memory` and `latency`, and wrong input."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from cli_helpers import MEMORY, OTHER, SAMPLES, TIMES, document, tracekit
from step_recordings import write_recording

import tracekit as tk
from tracekit.analysis.step_sums import PARTS
from tracekit.analysis.step_sums._per_iteration import COMPARE_KEYS
from tracekit.analysis.studies._memory_points import memory_rows
from tracekit.papers import _dgx1_study as _dgx1
from tracekit.runs._comparisons import KEYS

P2P = SAMPLES / "p2p_2gpu_start_end.sqlite"
STAR = SAMPLES / "p2p_4gpu_star.sqlite"


def test_the_keys_are_those_of_the_analysis() -> None:
    assert set(KEYS) == set(COMPARE_KEYS)


@pytest.mark.slow
def test_parts_of_the_step_add_up(stored: Path) -> None:
    """What differs between the two samples is the second run's noise, not what trains."""
    found = document("compare", "ddp", OTHER, "--by", "step", "--skip", "1")
    step = found["meta"]["step"]
    for side in ("a_ns", "b_ns", "delta_ns"):
        assert sum(row[side] for row in found["rows"]) == pytest.approx(step[side])
    back = document("compare", OTHER, "ddp", "--by", "step", "--skip", "1")
    assert [row["delta_ns"] for row in back["rows"]] == [-row["delta_ns"] for row in found["rows"]]


@pytest.mark.slow
def test_runs_that_are_not_comparable_get_no_verdict(stored: Path) -> None:
    found = document("compare", "ddp", P2P)
    assert found["meta"]["not_comparable"]
    assert {row["verdict"] for row in found["rows"]} == {None}
    text = tracekit("compare", "ddp", P2P).stdout
    assert "not comparable (" in text


@pytest.mark.slow
def test_a_limit_for_ci(stored: Path) -> None:
    within = tracekit("compare", STAR, STAR, "--fail-above", "5%")
    assert within.exit_code == 0
    assert re.fullmatch(r"tracekit: within 5 %: .* at most \+\d.\d % at 95 %\n", within.stderr)
    above = tracekit("compare", "ddp", STAR, "--fail-above", "5%", "--anyway")
    assert above.exit_code == 1
    assert above.stderr.startswith("tracekit: above 5 %: steps change by +")
    # Without its cold step, which is a half longer, 5 steps of the sample suffice.
    assert tracekit("compare", "ddp", "ddp", "--fail-above", "5%").exit_code == 0
    unknown = tracekit("compare", "ddp", "ddp", "--fail-above", "1%")
    assert unknown.exit_code == 3
    assert re.search(r"cannot decide .* about \d+ more steps of each would decide", unknown.stderr)
    passed = tracekit("compare", "ddp", "ddp", "--fail-above", "1%", "--unknown", "pass")
    assert passed.exit_code == 0
    assert "cannot decide" in passed.stderr
    refused = tracekit("compare", "ddp", P2P, "--fail-above", "5%")
    assert refused.exit_code == 3
    assert "cannot decide" in refused.stderr
    assert "4 GPUs in ddp, 2 GPUs in p2p_2gpu_start_end" in refused.stderr


def test_what_the_step_is_judged_by(stored: Path) -> None:
    found = document("compare", "ddp", "ddp", "--metric", "median", "--least", "1%")["meta"]
    assert found["judged"]["sentence"] == "by median: same within 1 %"
    assert found["headline"].endswith("by median: same within 1 %")
    told = tracekit("compare", "ddp", "ddp", "--metric", "median", "--fail-above", "20%")
    assert (told.exit_code, told.stderr.partition(":")[0]) == (0, "tracekit")
    assert "the median step changes by +0.0 %" in told.stderr


NIGHTS = (500, 505, 498, 502, 501, 550, 548, 553, 551, 549)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ten recordings: from the sixth night on steps take a tenth longer."""
    folder = tmp_path_factory.mktemp("nights")
    for night, length in enumerate(NIGHTS):
        file = write_recording(folder / f"n{night}.sqlite", [length + n % 3 for n in range(6)])
        labels = {"night": str(night), "version": "old" if length < 540 else "new"}
        tk.ingest(file, name=f"n{night}", labels=labels, store=folder / "store")
    return folder / "store"


@pytest.mark.slow
def test_several_recordings_a_side(nights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_STORE", str(nights))
    named = document("compare", "n0", "n1", "n2", "--against", "n5", "n6", "n7", "--by", "kernel")
    assert named["meta"]["recordings"] == {"a": ["n0", "n1", "n2"], "b": ["n5", "n6", "n7"]}
    assert {row["name"]: row["verdict"] for row in named["rows"]} == {
        "gemm": "slower", "sgd": "too small to matter"
    }  # fmt: skip
    a, b = ([tk.open(f"n{n}", store=nights) for n in side] for side in ((0, 1, 2), (5, 6, 7)))
    asked = tk.compare(a, b, "kernel")
    assert asked.rows.to_dicts() == named["rows"]
    assert asked.meta["step"] == named["meta"]["step"]
    labelled = document("compare", "--where", "version=old", "--against-where", "version=new")
    assert len(labelled["meta"]["recordings"]["b"]) == 5
    assert labelled["meta"]["judged"]["verdict"] == "slower"
    above = tracekit("compare", "n0", "n1", "n2", "--fail-above", "5%", "--against", "n5", "n6")
    assert (above.exit_code, above.stderr[:24]) == (1, "tracekit: above 5 %: ste")
    text = " ".join(tracekit("compare", "n0", "n1", "--against", "n5").stdout.split())
    assert "A n0, n1, 12 iterations on 1 GPU · B n5, 6 iterations on 1 GPU" in text
    assert "B is one recording" in text
    alone = tracekit("compare", "n0", "n5").stdout
    assert "; shown of these two recordings, 95 % interval" in alone
    # The typical step stands below the step, which is the sum of what is above it.
    closing = [line.split() for line in alone.splitlines() if line.split()[:1] == ["median"]]
    assert closing[-1][1:4] == ["501.00", "551.00", "50.00"]
    assert closing[-1][-1] == "slower"


@pytest.mark.slow
def test_the_history_of_a_nightly_job(
    nights: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACEKIT_STORE", str(nights))
    figure = tmp_path / "nights.html"
    found = document("compare", "--history", "night", "--figure", figure)
    assert found["meta"]["headline"].startswith("10 points: +9.")
    assert [row["value"] for row in found["rows"]] == [str(night) for night in range(10)]
    assert [row["level"] for row in found["rows"]] == [1] * 5 + [2] * 5
    assert tk.history("night", store=nights).to_dicts() == found["rows"]
    assert "line: median of a level" in figure.read_text()
    assert "10 points, mean steps" in tracekit("compare", "--history", "night").stdout


@pytest.mark.slow
def test_a_step_of_four_gpus_reads_the_same_everywhere(stored: Path) -> None:
    """One GPU updates the weights while the others wait: steps begin every 100.01 ms."""
    names = {"network": "star", "method": "p2p", "gpus": "4", "batch": "16"}
    labels = [word for key, value in names.items() for word in ("--label", f"{key}={value}")]
    assert tracekit("ingest", STAR, "--name", "star", *labels).exit_code == 0
    study = document("study", "star")["rows"][0]
    step = study["step_ns"]
    assert round(step / 1e6, 2) == 100.01
    assert study["images_per_s"] == pytest.approx(64e9 / step)
    assert document("scaling", "star")["rows"][0]["time_ns"] == step
    assert document("overhead", "star")["rows"][0]["baseline_ns"] == step
    compared = document("compare", "star", "star")["meta"]
    assert compared["step"]["a_ns"] == step
    assert compared["headline"] == (
        "A and B are one run; step: 100.01 ms in A, 100.01 ms in B: no change"
    )
    each = document("breakdown", "star", "--by", "iteration")["rows"]
    steps = [row for row in each if row["iteration"] is not None]
    assert sum(row["window_ns"] for row in steps) == study["step_total_ns"]
    assert {row["devices"] for row in steps} == {4}
    parts = ("busy_ns", "idle_ns", "between_steps_ns")
    assert all(sum(row[part] for part in parts) == row["window_ns"] for row in steps)
    printed = [line.split() for line in tracekit("compare", "star", "star").stdout.splitlines()]
    closing = next(place for place, words in enumerate(printed) if words[:2] == ["step", "100.01"])
    assert printed[closing][2] == "100.01"
    parts_of_a = [
        float(words[1]) for words in printed[4:closing] if words[0] in (*PARTS, "rounding")
    ]
    assert sum(parts_of_a) == pytest.approx(100.01, abs=1e-9)


def test_notes_name_runs_interval_and_method(stored: Path) -> None:
    text = " ".join(tracekit("compare", "ddp", "ddp").stdout.split())
    assert "A, 5 iterations on 4 GPUs · B, 5 iterations on 4 GPUs" in text
    assert text.startswith("A and B are one run; step: 3.64 ms in A, 3.64 ms in B: no change")
    assert "equal-weighted cosines" in text


def test_a_table_of_steps_holds_no_time_of_all_steps(stored: Path) -> None:
    printed = tracekit("study", "ddp").stdout
    assert printed.startswith(" A step of ddp takes 3.638 ms in the mean\n study · ms/step/GPU\n")
    assert "window" not in printed
    assert document("study", "ddp")["rows"][0]["window_ns"] > 0


def test_memory_is_a_peak_and_no_sum(stored: Path) -> None:
    assert tracekit("memory", "ddp").stdout.startswith(
        " memory · use · most in use at once, of each GPU\n"
    )
    assert document("memory", "ddp", "--what", "growth")["meta"]["peak_of"] == "GPU 0 in training"
    assert "most in use" not in tracekit("memory", "--table", MEMORY).stdout


def test_memory_of_an_unknown_root_was_recorded_all_the_same() -> None:
    for what in ("growth", "largest-batch"):
        asked = tracekit(
            "memory", "--table", MEMORY, "--what", what, "--root", "9", "--capacity", "16GB"
        )
        assert "no memory was recorded" not in asked.stdout
        assert "no run has a known batch and known memory of GPU 9 in training" in asked.stdout


@pytest.mark.slow
def test_tables_of_runs_say_what_their_processes_do_and_which_steps_are_left_out(
    stored: Path,
) -> None:
    commands = ("study", "scaling", "overhead --baseline nccl", "memory", "latency")
    left_out = "left out at the beginning: 1 of ddp; --skip 0 keeps all"
    few = (
        "intervals hold if no drift, and no slow steps rarer than the recorded ones "
        "(fewer than 200 steps, or slow variation): ddp"
    )
    for command in commands:
        words = [*command.split(), "ddp"]
        meta, text = document(*words)["meta"], tracekit(*words).stdout
        assert meta["verdicts"]["ddp"]["verdict"] == {"training": 4}
        assert "verdict" not in text
        if command in commands[:3]:
            assert meta["notes"] == [left_out, few]
            assert left_out in text
    assert document("study", "ddp", "--skip", "0")["meta"]["notes"] == [few]
    compared = document("compare", "ddp", STAR)["meta"]["verdicts"]
    assert {name: each["verdict"] for name, each in compared.items()} == {
        "ddp": {"training": 4}, "p2p_4gpu_star": {"training": 1},
    }  # fmt: skip
    assert "verdicts" not in document("scaling", "--table", TIMES)["meta"]


def test_tables_measured_elsewhere() -> None:
    """The speedups of the LeNet runs at batch 16 of the slides, and 16.4 % of overhead."""
    rows = document("scaling", "--table", TIMES, "--images", "262144")["rows"]
    assert document("scaling", "--table", TIMES, "--images", "256K")["rows"] == rows
    p2p = {row["gpus"]: row for row in rows if row["method"] == "p2p"}
    assert {n: round(row["speedup"], 2) for n, row in p2p.items()} == {
        1: 1.0, 2: 1.62, 4: 2.37, 8: 3.36,
    }  # fmt: skip
    assert round(p2p[8]["efficiency"], 3) == 0.420
    assert p2p[8]["iterations_per_epoch"] == 2048
    over = document("overhead", "--table", TIMES)["rows"]
    assert round(next(row for row in over if row["gpus"] == 1)["overhead_percent"], 1) == 16.4


@pytest.mark.slow
def test_named_runs_are_not_pooled(stored: Path, tmp_path: Path) -> None:
    labels = {"network": "net", "batch": "8", "gpus": "2", "method": "p2p"}
    tk.ingest(P2P, name="two", labels=labels)
    tk.ingest(OTHER, name="four", labels=labels)
    for command, column in (("scaling", "runs"), ("overhead", "baseline_runs")):
        pooled = document(command, "--where", "network=net")["rows"]
        assert [row[column] for row in pooled] == [2]
        named = document(command, "two", "four")["rows"]
        assert [row[column] for row in named] == [1, 1]
        name = "run" if command == "scaling" else "baseline_run"
        assert [row[name] for row in named] == ["four", "two"]
    drawn = tmp_path / "scaling.html"
    document("scaling", "--where", "network=net", "--figure", drawn)
    assert "runs, with least and greatest" in drawn.read_text()
    nothing = tracekit("overhead", "--where", "network=net", "--figure", tmp_path / "none.html")
    assert (nothing.exit_code, "there is nothing to draw" in nothing.stderr) == (2, True)
    assert "p2p" in nothing.stdout
    assert not (tmp_path / "none.html").exists()


@pytest.mark.slow
def test_a_study_of_labelled_runs(stored: Path) -> None:
    tk.ingest(P2P, name="two", labels={"network": "net", "batch": "8", "method": "p2p"})
    tk.ingest(OTHER, name="four", labels={"network": "net", "batch": "8", "method": "nccl"})
    found = document("study", "--where", "network=net")
    assert [(row["run"], row["gpus"], row["method"]) for row in found["rows"]] == [
        ("four", 4, "nccl"), ("two", 2, "p2p"),
    ]  # fmt: skip
    named = document("study", "two", "four")
    assert named["rows"] == found["rows"]
    frame = tk.study(where={"network": "net"})
    assert frame["run"].to_list() == ["four", "two"]
    assert [run.name for run in tk.select_runs(["two"])] == ["two"]
    assert {row["run"] for row in document("overhead", "two", "four", "--api")["rows"]} == {
        "two", "four",
    }  # fmt: skip


def test_samples_and_allocations_are_not_mixed() -> None:
    """Of each batch nvidia-smi saw 1 GB more than was allocated; a line is through either's."""
    points = pl.DataFrame(
        [
            {"network": "net", "method": None, "batch": batch, "gpu": gpu, "source": source,
             "training_bytes": batch * 10**9 + more * 10**9 + (1 - gpu) * 10**8}
            for batch in (1, 2, 4)
            for gpu in (0, 1)
            for source, more in (("allocator", 0), ("nvidia_smi", 1))
        ]
    )  # fmt: skip
    extra, growth, lines = (
        memory_rows(what, points, 0, 16 * 10**9, 0.0).sort("source")
        for what in ("extra", "growth", "largest-batch")
    )
    assert extra["extra_bytes"].unique().to_list() == [10**8]
    assert growth.filter(batch=4)["training_bytes"].to_list() == [4_100_000_000, 5_100_000_000]
    assert lines["slope_bytes"].to_list() == [1e9, 1e9]
    assert lines["largest_batch"].to_list() == [15, 14]


@pytest.mark.parametrize("batch", ["0", "8 GPUs", "9" * 30])
def test_a_label_that_is_no_batch(stored: Path, batch: str) -> None:
    tk.ingest(P2P, name="odd", labels={"batch": batch})
    for command in ("memory", "study"):
        refused = tracekit(command, "odd")
        assert refused.exit_code == 2
        assert "run 'odd' has the label batch=" in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_latency_of_one_run_and_against_another(stored: Path) -> None:
    alone = document("latency", "--bytes", "all_reduce=8MB")["rows"]
    sized = next(row for row in alone if row["operation"] == "all_reduce")
    assert (sized["size_bytes"], sized["class"]) == (1 << 22, "large")
    both = document("latency", OTHER, "--against", "ddp", "--bytes", "all_reduce=8MB")["rows"]
    row = next(row for row in both if row["operation"] == "all_reduce")
    assert row["speedup"] == pytest.approx(row["base_ns"] / row["new_ns"])
    assert row["base_ns"] == sized["p50_ns"]


@pytest.mark.slow
def test_figures(stored: Path, tmp_path: Path) -> None:
    drawn = {
        "compare": ["compare", "ddp", OTHER, "--figure"],
        "changes": ["compare", "ddp", OTHER, "--by", "kernel", "--changes"],
        "steps": ["compare", "ddp", OTHER, "--steps"],
        "steps of one": ["breakdown", "ddp", "--skip", "1", "--steps"],
        "idle": ["idle", "--figure"],
        "study": ["study", "--figure"],
        "scaling": ["scaling", "--table", TIMES, "--figure"],
        "efficiency": ["scaling", "--table", TIMES, "--value", "efficiency", "--figure"],
        "overhead": ["overhead", "--table", TIMES, "--figure"],
        "heat": ["overhead", "--table", TIMES, "--heat-map"],
        "memory": ["memory", "--table", MEMORY, "--figure"],
        "extra": ["memory", "--table", MEMORY, "--what", "extra", "--figure"],
        "growth": ["memory", "--table", MEMORY, "--what", "growth", "--figure"],
        "fit": ["memory", "--table", MEMORY, "--what", "largest-batch", "--capacity", "16GB",
                "--figure"],
        "latency": ["latency", "--bytes", "all_reduce=8MB", "--figure"],
        "histogram": ["latency", "--bytes", "all_reduce=8MB", "--what", "histogram", "--figure"],
    }  # fmt: skip
    for name, words in drawn.items():
        done = tracekit(*words, tmp_path / f"{name}.html")
        assert done.exit_code == 0, (name, done.stderr)
        assert "plotly" in (tmp_path / f"{name}.html").read_text().lower()
    assert "extra memory (%)" in (tmp_path / "extra.html").read_text()
    assert "growth (%)" in (tmp_path / "growth.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "ddp"], "a comparison takes two runs, not 1"),
        (["compare", "--where", "gpus=4"], "there is no side B"),
        (["compare", "--against", "ddp"], "side A is missing"),
        (["compare", "ddp", "--history", "night"], "no run has the label 'night'"),
        (["compare", "--history", "gpus", "--against", "ddp"], "a history has no side B"),
        (["compare", "--history", "gpus", "--iteration", "x"], "read as they were ingested"),
        (["compare", "ddp", "nothing"], "nothing"),
        (["compare", "ddp", "ddp", "--by", "wire"], "no comparison by 'wire'"),
        (["compare", "ddp", "ddp", "--by", "memory"], "memory"),
        (["compare", "ddp", "ddp", "--fail-above", "much"], "'much' is not a percentage"),
        (["compare", "ddp", "ddp", "--skip", "99"], "skip"),
        (["study", "--where", "network=none"], "no run with network=none"),
        (["study", "--where", "network"], "not of the form key=value"),
        (["scaling", "--table", "{memory}"], "has no column gpus"),
        (["scaling", "--table", "absent.csv"], "absent.csv"),
        (["scaling", "ddp", "--table", "{times}"], "give either, not both"),
        (["overhead", "--table", "{times}", "--baseline", "mpi"], "no run of the method 'mpi'"),
        (["memory", "--table", "{times}"], "has no column gpu"),
        (["memory", "--table", "{memory}", "--what", "largest-batch"], "give --capacity"),
        (["memory", "--smi", "{times}"], "nvidia-smi"),
        (["latency", "ddp", "--what", "staging", "--figure", "x.html"], "no figure shows staging"),
        (["overhead", "--api", "--table", "{times}"], "leave out --api"),
        (["overhead", "--profiler", "--heat-map", "x.html"], "no figure shows time of the profil"),
        (["memory", "ddp", "--table", "{memory}"], "give either, not both"),
        (["latency", "ddp", "--against", "ddp"], "are the same run"),
    ],
)
def test_wrong_input_is_one_message(stored: Path, words: list[str], message: str) -> None:
    files = {"times": TIMES, "memory": MEMORY}
    done = tracekit(*(word.format(**files) for word in words))
    assert done.exit_code == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert re.search(message, " ".join(done.stderr.replace("│", " ").split())), done.stderr


def test_a_study_says_what_no_run_tells(stored: Path) -> None:
    found = document("study", "dgx1", "--where", "gpus=4")
    assert found["meta"] == {"of_runs": "1 run"}
    assert [row["question"] for row in found["rows"]] == list(found["parts"])
    assert found["rows"][0]["found"] == "No run shows it."
    assert found["parts"]["networks"]["rows"][0]["gpus"] == 4
    text = tracekit("study", "dgx1", "--where", "gpus=4").stdout
    assert text.index("Do the workloads scale") < text.index("Why does P2P lose")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no run with study=dgx1"),
        (["--simulated", "ddp"], "--simulated chooses its own runs"),
        (["--network", "lenet"], "networks are chosen for the simulator"),
    ],
)
def test_a_study_of_the_wrong_runs_is_refused(stored: Path, words: list[str], message: str) -> None:
    done = tracekit("study", "dgx1", *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_an_installed_package_has_no_simulator(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.papers._dgx1_study._SIMULATOR", tmp_path)
    done = tracekit("study", "dgx1", "--simulated")
    assert done.exit_code == 2
    assert "not in an installed one" in done.stderr
    assert "sample_traces/simulate grid" in done.stderr


def test_runs_of_another_simulator_are_told_by_their_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _dgx1._labels()
    other = shutil.copytree(_dgx1._SIMULATOR, tmp_path / "simulate")
    monkeypatch.setattr("tracekit.papers._dgx1_study._SIMULATOR", other)
    assert _dgx1._labels() == own
    network = other / "networks" / "lenet.toml"
    network.write_text(network.read_text() + "\n")
    assert _dgx1._labels() != own


@pytest.mark.slow
def test_a_study_simulates_what_the_store_lacks(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two GPUs alone, so that it takes seconds; what is there is not made again."""
    names = [f"lenet-batch16-gpus{n}-{method}-strong" for n in (1, 2) for method in ("p2p", "nccl")]
    monkeypatch.setattr("tracekit.papers._dgx1_study._names", lambda _: names)
    done = tracekit("study", "dgx1", "--simulated", "--network", "lenet", "--format", "json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["meta"]["of_runs"] == "4 runs, all simulated"
    rows = found["parts"]["scaling"]["rows"]
    assert {(row["method"], row["gpus"]) for row in rows if row["published"]} == {
        ("p2p", 2), ("nccl", 2),
    }  # fmt: skip
    assert "simulated 4 of 4" in done.stderr
    again = tracekit("study", "dgx1", "--simulated", "--what", "methods", "-o", "page.html")
    assert (again.exit_code, again.stderr) == (0, "")
    assert "4 runs, all simulated" in Path("page.html").read_text()


def test_a_study_of_hosts_says_what_takes_a_gpu(stored: Path) -> None:
    """Two recordings of a CPU, with copies to a root and with Gloo; neither has a GPU's work."""
    recorded = [str(SAMPLES / "recorded" / f"lenet_{method}.sqlite") for method in ("p2p", "gloo")]
    found = document("study", "dgx1", *recorded)["parts"]
    assert found["networks"]["rows"]
    assert found["networks"]["meta"]["per"] == "step/process"
    assert not found["memory"]["rows"] + found["routes"]["rows"]
    assert found["routes"]["meta"]["headline"] == "No run shows it: it takes copies between GPUs."


def test_a_study_tells_what_its_simulator_rests_on(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a simulator of two assumptions, on the command line, as JSON and as a page."""
    rows: list[dict[str, object]] = [
        {
            "assumption": name,
            "value": "2",
            "low": "1",
            "high": "4",
            "unit": "ns",
            "source": "assumed",
        }
        for name in ("hop_ns", "collective_call_ns")
    ]
    rows += [
        {"assumption": name, "value": value, "network": "lenet", "method": method, "gpus": gpus,
         "step_ns": step}
        for name, value, nccl in (
            (None, None, 14.0), ("hop_ns", "1", 12.0), ("hop_ns", "4", 15.0),
            ("collective_call_ns", "1", 8.0), ("collective_call_ns", "4", 16.0),
        )
        for method, gpus, step in (("p2p", 1, 4.0), ("nccl", 8, nccl))
    ]  # fmt: skip
    told = tmp_path / "rows"
    told.write_text("\n".join(map(json.dumps, rows)))
    asked: list[tuple[str, ...]] = []

    def simulator(*words: str) -> subprocess.Popen[str]:
        asked.append(words)
        return subprocess.Popen(["cat", told], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr("tracekit.papers._dgx1_study._simulator", simulator)
    found = document("study", "dgx1", "--sensitivity", "--network", "lenet")
    assert asked == [("sensitivity", "--network", "lenet")]
    (hop, call) = found["parts"]["sensitivity"]["rows"]
    assert (hop["speedup_low"], hop["speedup_high"], hop["reached"]) == (32 / 15, 32 / 12, False)
    assert (call["reached"], found["meta"]["of_runs"]) == (True, "10 jobs, all simulated")
    (fit,) = found["parts"]["fit"]["rows"]
    assert (fit["predicted"], fit["fitted"]) == (pytest.approx(2.77), True)
    done = tracekit("study", "dgx1", "--sensitivity", "-o", "page.html")
    assert done.exit_code == 0, done.stderr
    page = Path("page.html").read_text()
    assert "Which assumption reaches which published speedup?" in page
    refused = tracekit("study", "dgx1", "--sensitivity", "--what", "scaling")
    assert (refused.exit_code, "chooses its own jobs" in refused.stderr) == (2, True)


@pytest.mark.nightly
def test_the_page_says_what_the_simulated_machine_shows(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speedups of docs/evidence/studies.md, which are simulated again."""
    page = (SAMPLES.parent / "docs" / "evidence" / "studies.md").read_text("utf-8")
    line = re.compile(r"\| (p2p|nccl) \| (\d) \| ([\d.]+) \| ([\d.]+) \| (-?[\d.]+) \|")
    told = {(m[1], int(m[2])): (float(m[3]), float(m[4]), float(m[5])) for m in line.finditer(page)}
    names = [
        f"lenet-batch16-gpus{gpus}-{method}-strong"
        for gpus in (1, 2, 4, 8) for method in ("p2p", "nccl")
    ]  # fmt: skip
    monkeypatch.setattr("tracekit.papers._dgx1_study._names", lambda _: names)
    rows = document("study", "dgx1", "--simulated", "--what", "scaling")["rows"]
    found = {
        (row["method"], row["gpus"]): (
            row["published"], round(row["speedup"], 2), round(row["error_percent"], 1)
        )
        for row in rows if row["published"]
    }  # fmt: skip
    assert found == told
