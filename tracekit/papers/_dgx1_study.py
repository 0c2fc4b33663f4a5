"""The DGX-1 study: its questions, asked of runs in the store or of simulated runs."""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tracekit import analysis, model, present
from tracekit.errors import UsageError
from tracekit.runs import is_simulated, question_of
from tracekit.support.files import StrPath, schemas
from tracekit.support.process import users_stderr
from tracekit.support.questions import AutoSkip, Option, optional

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analysis.comparison import Skip
    from tracekit.model import Answer
    from tracekit.papers._dgx1_questions import Measured
    from tracekit.runs import OpenedRun, Reference

Say = Callable[[str], None]

RECORDED, SIMULATED = "dgx1", "dgx1-simulated"
"""Values of the label ``study``: of recorded runs, and of simulated runs."""

_SIMULATOR = Path(__file__).resolve().parents[2] / "sample_traces" / "simulate"
_SIMULATOR_IS = "simulator"
"""Label with the version of the simulator that made a run."""
_MACHINE = "dgx1v"
_AMONG_GPUS = r"^GPU.*>GPU\d+$"
_ROUTES = ("network", "batch", "gpus", "method", "route_type", "transfers", "bytes", "busy_ns")


@question_of
@optional
def study_dgx1(
    references: Sequence["Reference"] = (),
    *,
    where: Mapping[str, str] | None = None,
    what: Annotated[
        Literal["scaling", "methods", "networks", "batches", "stages", "memory", "weak", "routes"]
        | None,
        Option("Answer one question alone."),
    ] = None,
    simulated: Annotated[
        bool,
        Option(
            "Answer from simulated runs; those that the store lacks are simulated now. Needs a "
            "copy of tracekit's repository; each of all 150 takes some seconds."
        ),
    ] = False,
    sensitivity: Annotated[
        bool,
        Option(
            "Show how speedups of the simulated machine depend on each assumption, and what "
            "it predicts if fitted to one published speedup. Needs what --simulated does."
        ),
    ] = False,
    networks: Annotated[
        Sequence[str],
        Option(
            "With --simulated or --sensitivity: of this network alone.",
            "NAME",
            flag="--network",
            typed=list[str] | None,
        ),
    ] = (),
    topology: Annotated[
        StrPath | None, Option("The machine, as for links.", "FILE|NAME", typed=Path | None)
    ] = None,
    skip: AutoSkip = "auto",
    store: StrPath | None = None,
    say: Say | None = None,
) -> "Answer":
    """Answer the questions of the DGX-1 study, beside its published numbers.

    The runs are chosen as for `select_runs`, by default those with the label ``study=dgx1``. `say`
    is called with a sentence about each simulation. With `sensitivity` nothing is stored.
    """  # fmt: skip
    from tracekit.papers._dgx1_questions import dgx1_questions
    from tracekit.runs import select_runs

    if sensitivity:
        if references or where or what or simulated:
            raise UsageError("--sensitivity chooses its own jobs", "give no more than --network")
        return _sensitivity(networks, say or _silent)
    if simulated:
        if references or where:
            raise UsageError("--simulated chooses its own runs", "name no runs with it")
        _simulate(networks, store, say or _silent)
        where, topology = _labels(), topology or _MACHINE
    elif networks:
        raise UsageError("networks are chosen for the simulator", "give --simulated, or --where")
    elif not references and where is None:
        where = {"study": RECORDED}
    chosen = select_runs(references, where=where, store=store)
    if networks:
        chosen = [run for run in chosen if run.labels.get("network") in networks]
    source = _of(chosen)
    parts = {
        key: replace(
            part.saying(of_runs=source), source=part.source or source, renderer=present.RENDERER
        )
        for key, part in dgx1_questions(_measured(chosen, topology, skip)).items()
    }
    return _overview(parts, source) if what is None else parts[what]


def _sensitivity(networks: Sequence[str], say: Say) -> "Answer":
    import polars as pl

    from tracekit.analysis.studies import load_published
    from tracekit.papers._sensitivity import sensitivity as asked

    say("simulating each assumption at the ends of its range: a minute or two")
    output = _simulator("sensitivity", *(["--network", *networks] if networks else []))
    rows = [json.loads(line) for line in output.communicate()[0].splitlines()]
    if output.returncode:
        raise UsageError("the simulator failed", "its own message is above")
    assumed = pl.DataFrame([row for row in rows if "unit" in row])
    steps = pl.DataFrame([row for row in rows if "unit" not in row], infer_schema_length=None)
    source = f"{steps.height:,} jobs, all simulated"
    parts = {
        key: replace(part.saying(of_runs=source), source=source, renderer=present.RENDERER)
        for key, part in asked(steps, assumed, load_published(RECORDED)).items()
    }
    return _overview(parts, source)


def _overview(parts: Mapping[str, "Answer"], source: str) -> "Answer":
    import polars as pl

    rows = [
        {"question": key, "asked": part.meta["question"], "found": part.meta["headline"]}
        for key, part in parts.items()
    ]
    return model.Answer(
        rows=pl.DataFrame(rows), meta={"of_runs": source}, title="The study of the DGX-1",
        parts=parts, command="study dgx1", source=source, as_records=True,
        renderer=present.RENDERER,
    )  # fmt: skip


def _of(chosen: Sequence["OpenedRun"]) -> str:
    """Return the number of runs as text, such as ``56 runs, 4 simulated``."""
    count = sum(map(is_simulated, chosen))
    of = "" if not count else ", all simulated" if count == len(chosen) else f", {count} simulated"
    return f"{len(chosen):,} run{'' if len(chosen) == 1 else 's'}{of}"


# -- what the questions are asked of -----------------------------------------------------------


def _measured(chosen: Sequence["OpenedRun"], topology: StrPath | None, skip: "Skip") -> "Measured":
    import polars as pl

    from tracekit.analysis.studies import load_published, memory_points
    from tracekit.papers._dgx1_questions import Measured

    study = analysis.studies.study(
        analysis.studies.study_row(run.trace, run.labels, run.name, skip=skip) for run in chosen
    )
    counts = study.select("run", pl.col("gpus"))
    memory = memory_points(chosen).join(counts, on="run", how="left", maintain_order="left")
    return Measured(study, memory, _routes(chosen, study, topology), load_published(RECORDED))


def _routes(
    chosen: Sequence["OpenedRun"], study: "pl.DataFrame", topology: StrPath | None
) -> "pl.DataFrame":
    """Return bytes and transfers between GPUs by type of route, from runs with P2P copies.

    Of each network and batch size, one run on the most GPUs is taken.
    """
    import polars as pl

    most = study.filter(method="p2p", basis="gpu").filter(pl.col("gpus") == study["gpus"].max())
    wanted = most.unique(["network", "batch"], keep="first", maintain_order=True)
    keys = {row["run"]: row for row in wanted.select("run", *_ROUTES[:4]).rows(named=True)}
    tables = [
        run.traffic(topology=topology).links("route")
        .filter(pl.col("route").str.contains(_AMONG_GPUS))
        .group_by("route_type").agg(pl.col("transfers", "bytes", "busy_ns").sum())
        .with_columns(pl.lit(value).alias(name) for name, value in keys[run.name].items())
        .select(_ROUTES)
        for run in chosen if run.name in keys
    ]  # fmt: skip
    nothing = pl.DataFrame(schema={name: study.schema.get(name, pl.Int64) for name in _ROUTES})
    kinds = nothing.cast({"route_type": pl.String}).schema
    return pl.concat([pl.DataFrame(schema=kinds), *tables], how="vertical_relaxed")


# -- simulated runs ----------------------------------------------------------------------------


def _silent(text: str) -> None:
    """Ignore a message; used in place of a function that prints it."""


def _simulate(networks: Sequence[str], store: StrPath | None, say: Say) -> None:
    """Simulate those of the study's runs that the store lacks, and store them."""
    from tracekit.runs import ingest
    from tracekit.store import Store

    place = Store.discover(store)
    labels = _labels()
    there = {record.name for record in place.runs(labels)}
    runs = {name: f"simulated-{labels[_SIMULATOR_IS]}-{name}" for name in _names(networks)}
    missing = [name for name, run in runs.items() if run not in there]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        done = _made(missing, Path(folder))
        for number, name in enumerate(done, 1):
            say(f"simulated {number} of {len(missing)}: {name}")
            trace = Path(folder) / f"{name}.sqlite"
            ingest(trace, name=runs[name], labels=labels, store=store)
            trace.unlink()


def _labels() -> dict[str, str]:
    """Return the labels of simulated runs: the study, and a hash of the simulator's files."""
    files = sorted(each for each in _SIMULATOR.rglob("*") if each.suffix in {".py", ".toml"})
    files.append(schemas() / "machines" / f"{_MACHINE}.toml")
    made_of = hashlib.sha256(b"\0".join(each.read_bytes() for each in files))
    return {"study": SIMULATED, _SIMULATOR_IS: made_of.hexdigest()[:8]}


def _names(networks: Sequence[str]) -> list[str]:
    """Return the names of the study's simulated jobs: of these networks, or of all."""
    options = ["--network", *networks] if networks else []
    output = _simulator("study-names", *options)
    out, _ = output.communicate()
    if output.returncode:
        raise UsageError("the simulator knows no such job", "networks are those of the study")
    return out.split()


def _made(names: Sequence[str], folder: Path) -> Iterator[str]:
    """Simulate jobs; yield each job's name once its trace has been written to `folder`."""
    with _simulator("study", str(folder), *names) as process:
        try:
            yield from map(str.strip, process.stdout or ())
        except BaseException:
            process.terminate()  # who asked has given up
            raise
    if process.returncode:
        raise UsageError("the simulator failed", "its own message is above")


def _simulator(*words: str) -> "subprocess.Popen[str]":
    if not (_SIMULATOR / "__main__.py").is_file():
        raise UsageError(
            "the simulator is only in the repository of tracekit, not in an installed one",
            "run this from a copy of the repository (pip install -e '.[test]'), or make traces "
            "there by `python sample_traces/simulate grid FOLDER` and ingest them with "
            f"--label study={SIMULATED}",
        )
    command = [sys.executable, str(_SIMULATOR), *words]
    return subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=users_stderr(), text=True
    )
