"""Studies: their grids, and what of them a machine allows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit.recording import gpu_count, load_study, study_names

TEXT = """
version = 1
title = "a study"
program = ["{python}", "train.py", "--gpus={gpus}", "{method}"]
only_gpus = ["nccl"]
[grid]
gpus = [1, 2]
method = ["p2p", "nccl"]
[fixed]
steps = 3
"""


def _written(folder: Path, text: str = TEXT) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_all_that_are_known_can_be_loaded() -> None:
    assert study_names() == ["cpu", "dgx1"]
    for name in study_names():
        study = load_study(name)
        assert study.title
        for each in study.configurations():
            assert "workloads.train" in study.command(each, cpu=False)


def test_the_grid_of_the_studies() -> None:
    study = load_study("dgx1")
    # Strong scaling of all, and weak scaling of the smallest batch on several GPUs.
    assert len(study.configurations()) == 5 * 3 * 4 * 4 + 5 * 1 * 3 * 4
    chosen = study.configurations({"network": "lenet", "gpus": "8", "batch": "16"})
    assert [each.name for each in chosen] == [
        f"dgx1-network=lenet-batch=16-gpus=8-method={method}-scaling={scaling}"
        for method in ("p2p", "nccl", "ddp", "gloo")
        for scaling in ("strong", "weak")
    ]
    assert chosen[0].labels == {
        "study": "dgx1", "network": "lenet", "batch": "16", "gpus": "8", "method": "p2p",
        "scaling": "strong", "fixed": "images=256K steps=20 warm-up=5",
    }  # fmt: skip
    assert len(study.configurations({"scaling": "weak"})) == 60
    *_, gloo = study.configurations({"network": "lenet", "gpus": "2", "batch": "16"})
    assert study.obstacle(gloo, 8, cpu=True) is None
    assert study.obstacle(gloo, 8, cpu=False) == "gloo is recorded with --cpu"


@pytest.mark.parametrize(
    ("network", "method", "asked"),
    [
        ("googlenet", "nccl", ["googlenet --no-auxiliary", "nccl --exchange reduce_broadcast"]),
        ("resnet-110", "ddp", ["resnet-110-imagenet", "nccl --exchange all_reduce"]),
    ],
)
def test_values_stand_for_arguments(network: str, method: str, asked: list[str]) -> None:
    """P2P is compared with what NCCL does alike: gradients to a root, and weights back."""
    study = load_study("dgx1")
    chosen = {"network": network, "gpus": "2", "method": method, "scaling": "weak"}
    (configuration,) = study.configurations(chosen)
    command = study.command(configuration, cpu=False)
    assert " ".join(command[3:]) == (
        f"--network {asked[0]} --batch 16 --gpus 2 --method {asked[1]} --scaling weak"
        " --images 256K --steps 20 --warm-up 5"
    )
    assert configuration.labels["method"] == method


@pytest.mark.slow
def test_the_programs_of_a_study_take_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from typer.testing import CliRunner

    from workloads import _launch, train

    monkeypatch.setattr(_launch, "run", lambda options: None)
    for name in study_names():
        study = load_study(name)
        for each in {each.options["method"]: each for each in study.configurations()}.values():
            words = study.command(each, cpu=False)[3:]
            done = CliRunner().invoke(train.app, list(words))
            assert done.exit_code == 0, done.stderr


def test_commands(tmp_path: Path) -> None:
    study = load_study(_written(tmp_path))
    first, second = study.configurations({"gpus": "2"})
    command = (sys.executable, "train.py", "--gpus=2", "p2p", "--steps", "3")
    assert study.command(first, cpu=False) == command
    assert study.command(first, cpu=True) == command  # it does not say how
    asks = load_study(_written(tmp_path, 'cpu = ["--device", "cpu"]' + TEXT))
    assert asks.command(first, cpu=True) == (*command, "--device", "cpu")
    assert first.name == "mine-gpus=2-method=p2p"
    assert second.options == {"gpus": 2, "method": "nccl"}


def test_what_a_machine_allows(tmp_path: Path) -> None:
    study = load_study(_written(tmp_path))
    p2p, nccl = study.configurations({"gpus": "2"})
    assert study.obstacle(p2p, 2, cpu=False) is None
    assert study.obstacle(p2p, 1, cpu=False) == "needs 2 GPUs, and there are 1"
    assert study.obstacle(p2p, 0, cpu=True) is None
    assert study.obstacle(nccl, 0, cpu=True) == "nccl needs GPUs"


def test_what_is_fixed_counts_too(tmp_path: Path) -> None:
    text = TEXT.replace("gpus = [1, 2]\n", "").replace('"--gpus={gpus}", ', "")
    free = load_study(_written(tmp_path, text))
    assert free.obstacle(free.configurations()[0], 0, cpu=False) is None
    fixed = load_study(_written(tmp_path, text.replace("steps = 3", "gpus = 8")))
    assert fixed.obstacle(fixed.configurations()[0], 4, cpu=False) == (
        "needs 8 GPUs, and there are 4"
    )


def test_runs_of_another_grid_are_found_out(tmp_path: Path) -> None:
    study = load_study(_written(tmp_path))
    labels = {"study": "mine"}
    runs = {"mine-gpus=1-method=p2p": labels, "mine-gpus=4-method=p2p": labels, "other": {}}
    assert study.strangers(runs) == ["mine-gpus=4-method=p2p"]


def test_options_with_hyphens(tmp_path: Path) -> None:
    text = TEXT.replace("method", "batch-size").replace('["p2p", "nccl"]', "[16, 32]")
    study = load_study(_written(tmp_path, text))
    assert "16" in study.command(study.configurations()[0], cpu=False)


def test_a_study_that_trains_on_the_cpu_by_itself() -> None:
    study = load_study("cpu")
    assert study.on_cpu
    command = study.command(study.configurations()[0], cpu=True)
    assert command.count("--device") == 1


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"network": "x"}, "study mine has no 'network': it has gpus, method"),
        ({"gpus": "3"}, "study mine has no configuration with gpus=3"),
    ],
)
def test_what_a_grid_lacks(tmp_path: Path, where: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_study(_written(tmp_path)).configurations(where)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2", "version is not 1"),
        ("not toml", r"mine.toml is not a study \("),
        (TEXT.replace("title", "titel"), "unknown key 'titel'"),
        (TEXT.replace("[1, 2]", "[]"), "gpus is not a list"),
        (TEXT.replace("[1, 2]", "[1.5]"), "gpus are not numbers of GPUs"),
        (TEXT.replace("{method}", "{methods}"), "program names 'methods'"),
        ("version = 1\nprogram = 3", "program is not a list"),
        (TEXT.replace("steps = 3", "gpus = 3"), "'gpus' is in the grid and fixed"),
        (TEXT.replace("[fixed]", 'lr = ["0.1"]\n[fixed]'), "program does not name 'lr'"),
        (TEXT.replace("[1, 2]", "[1, 1]"), "gpus has a value twice"),
        (TEXT.replace("[1, 2]", '["all"]'), "gpus are not numbers of GPUs"),
        (TEXT.replace("[1, 2]", "[0]"), "gpus are not numbers of GPUs"),
        (TEXT.replace("[1, 2]", "[true]"), "gpus is not a list"),
        (TEXT.replace("[1, 2]", "16"), "gpus is not a list"),
        (TEXT.replace('["p2p", "nccl"]', '"p2p"'), "method is not a list"),
        (TEXT.replace('only_gpus = ["nccl"]', 'only_gpus = "nccl"'), "only_gpus is not a list"),
        (TEXT.replace("[fixed]", 'study = ["a"]\n[fixed]'), "'study' cannot be an option"),
        (TEXT + '[arguments.method]\np2p = ["x"]', "does not have the values that method has"),
        (TEXT + '[arguments.method]\np2p = ["x"]\nnccl = "y"', "are not lists of texts"),
        (TEXT + "[arguments.gpus]\n1 = []\n2 = []", "{gpus} becomes several arguments, and is"),
        (TEXT + "[arguments]\nmethod = 3", "method is not a table"),
        ("cpu = [3]" + TEXT, "cpu is not a list of texts"),
        (TEXT.replace("[1, 2]", "[nan]"), "gpus is not a list"),
        ("without = 3" + TEXT, "without is not a list of tables"),
        (TEXT + "[[without]]\ngpus = [3]", "without has values of 'gpus' that are not in the"),
        ("version = 1\ngrid = 3", "grid is not a table"),
    ],
)
def test_files_that_are_no_studies(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_study(_written(tmp_path, text))


def test_no_such_study() -> None:
    with pytest.raises(UsageError, match=r"no study 'nope': there are cpu, dgx1, or name a file"):
        load_study("nope")


def test_text_in_a_study_is_not_run(tmp_path: Path) -> None:
    text = TEXT.replace('"train.py"', '"{gpus.__class__}", "$(touch x); {0}"')
    with pytest.raises(UsageError, match="program names '0'"):
        load_study(_written(tmp_path, text))


class TestGpus:
    @pytest.fixture
    def two(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_as_the_driver_says(self, two: None, monkeypatch: pytest.MonkeyPatch) -> None:
        assert gpu_count() == 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert gpu_count() == 1
        for visible, seen in {
            "": 0, "-1": 0, "0,-1,1": 1, "1,0": 2, "NoDevFiles": 0, "7": 0, "GPU-x, GPU-y": 2,
        }.items():  # fmt: skip
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            assert gpu_count() == seen, visible

    def test_no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "/no/such")
        assert gpu_count() == 0


def test_options_that_are_set() -> None:
    study = load_study("cpu", {"steps": "100", "seed": "7"})
    configuration = study.configurations()[0]
    command = " ".join(study.command(configuration, cpu=False))
    assert "--steps 100 " in command
    assert command.endswith("--seed 7")
    assert configuration.labels["fixed"] == "device=cpu seed=7 steps=100 warm-up=2"
    assert configuration.differs_from(configuration.labels) is None
    assert configuration.differs_from({}) is None  # of a run from before there was such a label
    usual = load_study("cpu").configurations()[0].labels
    assert configuration.differs_from(usual) == "device=cpu steps=10 warm-up=2"
    with pytest.raises(UsageError, match="'batch' is in the grid and fixed"):
        load_study("cpu", {"batch": "3"})


def test_numbers_that_are_not_whole(tmp_path: Path) -> None:
    text = TEXT.replace("[grid]", "[grid]\nlr = [0.1, 1e-3]").replace("train.py", "{lr}")
    found = load_study(_written(tmp_path, text)).configurations({"lr": "0.001", "gpus": "1"})
    assert {each.labels["lr"] for each in found} == {"0.001"}
    assert found[0].name == "mine-lr=0.001-gpus=1-method=p2p"
