"""Every line of the page on clusters, with programs in place of srun, torchrun, docker and nsys."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from effort import by_day
from fake_nsys import make_fake_nsys

import tracekit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "slurm.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
# What `srun` starts is recorded, and a hook printed, in a container too.
ALIKE = BLOCKS[0], BLOCKS[3]

SRUN = """
import os, subprocess, sys
words = sys.argv[1:]
tasks = 1
while words[0].startswith("-"):
    option, _, value = words.pop(0).partition("=")
    assert option in {"--ntasks", "--container-image", "--container-mounts"} and value
    tasks = int(value) if option == "--ntasks" else tasks
started = [
    subprocess.Popen(words, env={**os.environ, "SLURM_PROCID": str(n), "SLURM_NTASKS": str(tasks)})
    for n in range(tasks)
]
sys.exit(max(each.wait() for each in started))
"""
DOCKER = """
import os, sys
words = sys.argv[1:]
assert words.pop(0) == "run"
kept = {"PATH": os.environ["PATH"]}  # an image has its own variables
while words[0].startswith("-"):
    option = words.pop(0)
    value = "" if "=" in option else words.pop(0)
    if option == "-e":
        kept[value] = os.environ[value]
    elif option == "-w":
        os.chdir(value)
assert words.pop(0) == "image"
os.execvpe(words[0], words, kept)
"""
TORCHRUN = """
import os, subprocess, sys
words = sys.argv[1:]
ranks = next(int(each.partition("=")[2]) for each in words if each.startswith("--nproc-per-node="))
program = [each for each in words if not each.startswith("-")]
assert program == ["train.py"] and ranks == 8
sys.exit(subprocess.run([sys.executable, *program], env={**os.environ, "RANK": "0"}).returncode)
"""
TRAINING = """
import os, sys
from pathlib import Path
seen = sys.modules.get("sitecustomize")
with open("seen.txt", "a") as file:
    print(os.environ.get("SLURM_PROCID", "-"), os.environ.get("TRACEKIT_ANNOTATE"),
          getattr(seen, "__file__", None), file=file)
ring = os.environ.get("TRACEKIT_RING")
if ring:
    folder = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).parent
    sys.path.insert(0, str(folder.parent))
    from annotation._ring import RingRanges
    ranges = RingRanges(ring)
    ranges.push("FP")
    ranges.pop()
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in, with these programs on the path."""
    tools, work = tmp_path / "tools", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    make_fake_nsys(tools)
    tracekit_itself = "import runpy; runpy.run_module('tracekit', run_name='__main__')"
    for name, code in {
        "srun": SRUN, "docker": DOCKER, "torchrun": TORCHRUN, "tracekit": tracekit_itself,
    }.items():  # fmt: skip
        (tools / name).write_text(f"#!{sys.executable}\n{code}")
        (tools / name).chmod(0o755)
    (tools / "python").symlink_to(sys.executable)
    (work / "train.py").write_text(TRAINING)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    for name in ("PYTHONPATH", "TRACEKIT_NSYS", "TRACEKIT_STORE", "RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return work


def _run(block: str) -> str:
    done = subprocess.run(
        ["bash", "-euc", block], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("block", by_day(BLOCKS, *(each for each in BLOCKS if each not in ALIKE)))
def test_lines_of_the_page(cluster: Path, block: str) -> None:
    """What they print is a breakdown; the programs have the ranks, and the hooks if asked for."""
    said = _run(block)
    if "--dry-run" in block:
        assert "TRACEKIT_ANNOTATE=1" in said
        assert "srun --ntasks=2" in said
        assert not (cluster / "seen.txt").exists()
        return
    seen = sorted(line.split() for line in (cluster / "seen.txt").read_text().splitlines())
    assert [rank for rank, *_ in seen] == (["0", "1"] if "srun" in block else ["-"])
    is_hooked = "--annotate" in block or "--print-hook" in block
    assert {layers for _, layers, _ in seen} == {"1" if is_hooked else "None"}
    if "--ring" in block:
        for rank in (0, 1):
            ranges = tracekit.open(cluster / f"live.rank{rank}.ring").table("ranges").collect()
            assert ranges["name"].to_list() == ["FP"]
        return
    name = re.search(r"--(?:name|run) (\w+)", block)
    assert name is not None
    run = tracekit.open(name[1])
    assert len(run.table("reports").collect()) == len(seen)


def test_the_hooks_are_all_that_a_container_needs(cluster: Path) -> None:
    """A Python without site-packages runs them from the copy."""
    line = _run("tracekit record --print-hook --hook-folder hooks --ring live.ring")
    code = "import sys; print([m for m in sys.modules if 'tracekit' in m], sys.path)"
    run = f"{line}\nenv -i PYTHONPATH=$PYTHONPATH TRACEKIT_ANNOTATE=1 TRACEKIT_RING=x "
    base = Path(sys.base_prefix) / "bin" / "python3"
    said = _run(f'{run} {base} -c "{code}"')
    assert "_tracekit_annotation" in said
    assert str(ROOT) not in said
