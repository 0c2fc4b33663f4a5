"""`tracekit record`: record a program, or a study, with Nsight Systems."""

import itertools
import os
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

import typer

import tracekit
from tracekit import attribution, model, recording
from tracekit import store as stores
from tracekit.cli._command import Judged, command
from tracekit.cli._guard import complain
from tracekit.cli._options import (
    Label,
    RulesOption,
    parse_labels,
    rows_frame,
)
from tracekit.cli._progress import progress_bar, progress_bars
from tracekit.errors import (
    InputError,
    MissingDataError,
    NameTakenError,
    RecordingError,
    TracekitError,
    UsageError,
)
from tracekit.recording import STEPS, Wanted
from tracekit.support.files import StrPath
from tracekit.support.questions import Folder, Labels, Option
from tracekit.support.schemas import NO_RUN, Json, one

if TYPE_CHECKING:
    import tracekit
    from tracekit.model import Answer
    from tracekit.recording import Configuration, Cost, Nsys, Plan, Study

_STUDY = "Studies"
_FOLDER = Path("recordings")
_FAILED = 1


@dataclass(frozen=True)
class _What(Wanted):
    """Options: which kinds of data to record, and whether to record a job that already runs."""

    attach: Annotated[
        Path | None,
        Option(
            "Have all ranks of the job that runs with --attachable DIR record the same steps"
            " (--for), and return when they have.",
            "DIR",
        ),
    ] = None
    print_hook: Annotated[
        bool,
        Option(
            "Print the line for a shell that has PyTorch programs annotate themselves under"
            " any nsys, or with --ring, and run nothing.",
        ),
    ] = False

    @property
    def is_annotated(self) -> bool:
        """True if programs annotate themselves."""
        return super().is_annotated or self.print_hook


@dataclass(frozen=True)
class _OfStudy:
    """Options to record a study (a grid of configurations), or a part of it."""

    study: Annotated[
        str | None,
        Option(
            "Record a grid of configurations: dgx1, cpu, or a TOML file. What is in the store"
            " already is not recorded again.",
            "STUDY",
            panel=_STUDY,
        ),
    ] = None
    where: Labels = None
    settings: Annotated[
        list[str] | None,
        Option(
            "Give all programs of a study an option, such as --set steps=100.",
            "OPTION=VALUE",
            flag="--set",
            panel=_STUDY,
        ),
    ] = None
    cpu: Annotated[
        bool,
        Option("Train a study on the CPU.", panel=_STUDY),
    ] = False


@dataclass(frozen=True)
class _OfSeries:
    """Options to record a program several times, or in turn with another program."""

    panel: ClassVar[str] = "Several recordings"

    times: Annotated[
        int,
        Option(
            "Record the program N times, and show how its step varies.",
            "N",
            least=1,
        ),
    ] = 1
    against: Annotated[
        str | None,
        Option(
            "Record this program (A) in turn with the other (B), A B B A, each --times times, "
            "and compare them.",
            "PROGRAM",
        ),
    ] = None

    def programs(self, program: Sequence[str]) -> dict[str, Sequence[str]]:
        """Return the programs to record, in order: suffix of the runs' names -> command."""
        if self.against is None:
            return {f"-{number + 1}": program for number in range(self.times)}
        try:
            other = shlex.split(self.against)
        except ValueError as error:
            raise UsageError(
                f"cannot read the command --against {self.against!r} ({error})"
            ) from None
        counts = {"a": itertools.count(1), "b": itertools.count(1)}
        sides = ("b" if is_b else "a" for is_b in recording.in_turn(self.times))
        return {f"-{side}-{next(counts[side])}": program if side == "b" else other
                for side in sides}  # fmt: skip


_JSON = Json(
    "record",
    typed="record --study",
    run=NO_RUN,
    of_rows="A row for each configuration; its options are columns by their names. Of a program "
    "alone it is all as breakdown writes it, of several recordings as compare --history does, "
    "and of two programs as compare.",
    meta={"study": "text: Name of the study.", "title": "text: What it is."},
    rows={
        "run": "text: Name of its run.",
        "status": "text: `recorded`, `recorded already`, `left out: ` or `failed: ` with the "
        "reason, or in a dry run the command.",
    },
    row_rules={"additionalProperties": one("text or integer: An option of the grid.")},
)


@command(
    "tracekit record -- python train.py --epochs 1",
    "tracekit record --annotate -- python train.py",
    "tracekit record --print-hook --ring live.ring",
    "tracekit record --name lenet-2 -- torchrun --nproc-per-node 2 train.py",
    "tracekit record --dry-run --memory-usage -- mpirun -n 4 python train.py",
    "tracekit record --times 5 --against 'python old.py' -- python new.py",
    "tracekit record --study dgx1 --where network=lenet",
    rows=False,
    context_settings={"allow_interspersed_args": False},
    writes=[_JSON],
)
def record(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM...", help="The program to record, with its arguments."),
    ] = None,
    *,
    name: Annotated[str | None, Option("Name of the run. Default: the program's.")] = None,
    label: Label = None,
    folder: Annotated[
        Path,
        Option("Where reports are kept, in a folder for each run.", "DIR", flag="--reports"),
    ] = _FOLDER,
    dry_run: Annotated[bool, Option("Print the commands, and run nothing.")] = False,
    calibrate: Annotated[
        bool,
        Option(
            "Measure by how much recording slows steps, from 13 runs of a short"
            " program, without and with nsys, and keep nothing."
        ),
    ] = False,
    one_report: Annotated[
        bool,
        Option("Record a launcher and all its ranks on this machine together."),
    ] = False,
    wait: Annotated[
        str | None,
        Option(
            "Processes left behind by the program to wait for. Default: those"
            " that use GPUs, write ranges or compute, until they do nothing.",
            "all|primary|SECONDS",
        ),
    ] = None,
    nsys: Annotated[
        str | None,
        Option("The nsys. Default: TRACEKIT_NSYS, or the installed.", "PATH"),
    ] = None,
    wanted: _What,
    of_series: _OfSeries,
    of_study: _OfStudy,
    rules: RulesOption = None,
    store: Folder = None,
) -> "Answer | Judged":
    """Record a program with nsys, ingest the report, and show where the time goes.

    Under torchrun, mpirun or srun each rank gets a report, and all become one run. Options of
    tracekit come before the program.
    """
    if wanted.print_hook or wanted.attach is not None:
        _attach_or_print(wanted, program)
    recorder = _Recorder(
        wanted,
        folder,
        nsys,
        store,
        rules,
        dict(label or {}),
        one_report,
        wait or "work",
    )
    recorder.check()
    is_series, has_windows = of_series != _OfSeries(), wanted.has_windows
    if of_study.study is not None:
        if program or name or calibrate or is_series or has_windows:
            raise UsageError(
                "a study names its programs and runs itself",
                "leave out the program, --name, --calibrate, --times, --against, --every",
            )
        where = dict(of_study.where or {})
        fixed = parse_labels(of_study.settings or [])
        cpu = of_study.cpu
        return _record_study(recorder, of_study.study, where, fixed, cpu=cpu, dry_run=dry_run)
    if of_study.where or of_study.cpu or of_study.settings:
        raise UsageError("--where, --set and --cpu are for a study", "name it with --study")
    _check_alone(calibrate=calibrate, is_series=is_series, has_windows=has_windows)
    if is_series:
        return _record_series(recorder, program or [], name, of_series, dry_run=dry_run)
    free = recorder.free_name([program or []], name, ("", "-1") if has_windows else ("",))
    plan = recorder.plan(program or [], free)
    if dry_run or calibrate:
        typer.echo(plan.script if dry_run else recorder.cost(plan))
        raise typer.Exit
    if has_windows:
        if wanted.attachable is not None:
            recording.clear(wanted.attachable)
        return _record_windows(recorder, plan, free)
    return _record_once(recorder, plan, free, is_annotated=wanted.annotate)


def _check_alone(*, calibrate: bool, is_series: bool, has_windows: bool) -> None:
    """Raise `UsageError` if the options ask for two ways of recording at once."""
    if calibrate and (is_series or has_windows):
        raise UsageError("--calibrate keeps no recording", "leave out --every, --times, --against")
    if is_series and has_windows:
        raise UsageError("windows are of one recording", "leave out --times and --against")


def _attach_or_print(wanted: _What, program: list[str] | None) -> NoReturn:
    """Have a running job record some steps, or print how to start one that can."""
    if program or (wanted.attach is not None and (wanted.has_windows or wanted.print_hook)):
        raise UsageError("--attach and --print-hook run no program", "leave it out, and --every")
    if wanted.attach is None:
        wanted.check()
        hook = wanted.hook(os.environ).items()
        typer.echo("export " + " ".join(f"{name}={shlex.quote(text)}" for name, text in hook))
        raise typer.Exit

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    steps = recording.attach(wanted.attach, wanted.length or STEPS, report=tell)
    for rank, (first, behind) in sorted(steps.items()):
        typer.echo(f"{rank}: {behind - first:,} steps, {first:,} to {behind - 1:,}")
    raise typer.Exit


def _record_once(recorder: "_Recorder", plan: "Plan", name: str, *, is_annotated: bool) -> "Answer":
    """Record a program once, and return its breakdown."""
    if not recorder.tool.sees_switches:
        typer.echo(
            f"{recorder.tool} may not record here when threads are on a CPU (see `nsys status"
            " --environment`): causes of idle time are found without",
            err=True,
        )
    try:
        run = recorder.record(plan, name)
    except MissingDataError as error:  # the program did what it should, and was recorded
        complain(str(error))
        raise typer.Exit from None
    if is_annotated:
        typer.echo(f"steps are known {_steps_known(run)}", err=True)
    try:
        return run.breakdown.answer()
    except MissingDataError as error:  # of MPI alone, say: the run is there, and of use
        typer.echo(
            f"ingested as {run.name}; its breakdown failed: {error.what}"
            + ("" if is_annotated else "; --annotate makes a PyTorch program mark its stages"),
            err=True,
        )
        raise typer.Exit from None


def _record_windows(recorder: "_Recorder", plan: "Plan", name: str) -> "Answer":
    """Record a program in several windows of time, each as a run of all ranks, and compare them."""
    windows = recording.by_window(recorder.reports(plan))
    runs = [
        recorder.ingest(reports, f"{name}-{number}", {"series": name, "window": str(number)})
        for number, reports in windows.items()
    ]
    for run in runs:
        steps = _steps_of_reports(run)
        typer.echo(f"{run.name}: {' and '.join(steps) or 'no complete step'}", err=True)
        if len(steps) > 1:
            complain(f"ranks recorded different steps in {run.name}: do not compare the ranks")
    typer.echo(f"steps are known {_steps_known(runs[0])}", err=True)
    return tracekit.history.answer("window", runs)


def _record_series(
    recorder: "_Recorder",
    program: Sequence[str],
    name: str | None,
    of_series: _OfSeries,
    *,
    dry_run: bool,
) -> "Answer":
    """Record one program several times, or two alternately, and compare their steps."""
    programs = of_series.programs(program)
    series = recorder.free_name(list(programs.values()), name, list(programs))
    plans = {f"{series}{end}": recorder.plan(words, f"{series}{end}")
             for end, words in programs.items()}  # fmt: skip
    if dry_run:
        typer.echo("\n".join(plan.script for plan in plans.values()))
        raise typer.Exit
    sides: dict[str, list[tracekit.Run]] = {"a": [], "b": []}
    labels = {"series": series}
    for number, ((run, plan), end) in enumerate(zip(plans.items(), programs, strict=True), 1):
        side = "b" if end.startswith("-b") else "a"
        typer.echo(f"recording {number} of {len(plans)}", err=True)
        of_side = {} if of_series.against is None else {"side": side}
        run_labels = {**labels, **of_side, "recording": str(number)}
        try:
            sides[side].append(recorder.record(plan, run, run_labels))
        except TracekitError:
            two = of_series.against is not None
            complain(_left_of_series(series, number - 1, len(plans), two=two))
            raise
    if of_series.against is None:
        return tracekit.history.answer("recording", sides["a"])
    return tracekit.compare(sides["a"], sides["b"])


def _left_of_series(series: str, made: int, number: int, *, two: bool) -> str:
    """Return a sentence on the runs of a series that ended early, and the command to see them."""
    of = f"series={series}"
    looks = f"--history recording --where {of}"
    if two:
        looks = f"--where {of} --where side=a --against-where {of} --against-where side=b"
    return f"{made} of {number} recordings are in the store: `tracekit compare {looks}`"


def _steps_of_reports(run: "tracekit.Run") -> list[str]:
    """Return texts on the annotated steps of the trace files: ``3 steps, 60 to 62``, each once."""
    import polars as pl

    number = pl.col("name").cast(pl.String).str.extract(r"^iteration (\d+)$").cast(pl.Int64)
    annotated = run.table("ranges").filter(pl.col("domain").cast(pl.String) == "tracekit")
    steps = annotated.select("report", number=number).drop_nulls()
    spans = steps.group_by("report").agg(
        first=pl.col("number").min(), last=pl.col("number").max(), steps=pl.len()
    )
    found = spans.select("first", "last", "steps").unique().sort("first", "last", "steps").collect()
    return [
        f"{steps:,} step{'' if steps == 1 else 's'}, {first:,} to {last:,}"
        for first, last, steps in found.rows()
    ]


def _steps_known(run: "tracekit.Run") -> str:
    """Return how annotation knew where steps end, such as by optimizers, from its NVTX marks."""
    import polars as pl

    mark = "tracekit.steps "
    names = run.table("ranges").select(pl.col("name").cast(pl.String)).unique()
    marks = names.filter(pl.col("name").str.starts_with(mark)).collect()["name"].sort()
    return ", ".join(each.removeprefix(mark) for each in marks) or "from nothing: they are unknown"


@dataclass(frozen=True)
class _Recorder:
    """Records programs with fixed options, into one store."""

    wanted: Wanted
    folder: Path
    nsys: str | None
    store: StrPath | None
    rules: Path | None
    labels: Mapping[str, str]
    one_report: bool
    wait: str

    def runs(self) -> dict[str, Mapping[str, str]]:
        """Return the labels of the runs in the store: name of the run -> labels."""
        return {each.name: each.labels for each in tracekit.Store.discover(self.store).runs()}

    def free_name(
        self, programs: Sequence[Sequence[str]], name: str | None, endings: Sequence[str] = ("",)
    ) -> str:
        """Return an unused name for a run: the one asked for, else the program's with a number.

        With several `endings`, the name is unused with each of them.
        """
        taken = self.runs()
        if name is not None:
            stores.check_name(name)
            for each in (f"{name}{ending}" for ending in endings):
                if each in taken:
                    raise NameTakenError(f"there is a run {each!r} already", "give another --name")
            return name
        there = {path.name.removesuffix(".partial") for path in self.folder.glob("*")}
        base = "-vs-".join(
            dict.fromkeys(recording.file_name(_program_name(each)) for each in programs)
        )
        tried = itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2)))
        used = taken.keys() | there
        return next(each for each in tried if used.isdisjoint(each + end for end in endings))

    def check(self) -> None:
        """Check before recording that options are valid, so that the reports can be ingested."""
        self.wanted.check()
        attribution.Rules.load(self.rules, None)
        stores.check_labels(self.labels)
        if self.wait not in {"work", "all", "primary"} and not self.wait.isdecimal():
            raise UsageError(f"--wait takes no {self.wait!r}", "--wait all, primary or 30")

    @cached_property
    def tool(self) -> "Nsys":
        """The nsys that is used."""
        return recording.find_nsys(self.nsys)

    def plan(self, program: Sequence[str], name: str) -> "Plan":
        """Return how to record a program: the command of nsys and the files that it writes."""
        return recording.plan(
            program,
            self.wanted,
            self.tool,
            self.folder / recording.file_name(name),
            one_report=self.one_report,
        )

    def of_gpus(self) -> "_Recorder":
        """Return a recorder that also records memory use, an NCCL log, and nvidia-smi samples."""
        memory = self.wanted.memory_usage or "cuda-memory-usage" in self.tool.options
        wanted = replace(self.wanted, memory_usage=memory, nccl_log=True, nvidia_smi=True)
        return replace(self, wanted=wanted)

    def record(
        self,
        plan: "Plan",
        name: str,
        labels: Mapping[str, str] = MappingProxyType({}),
        *,
        anew: bool = False,
    ) -> "tracekit.Run":
        """Record according to a plan, and ingest the reports."""
        return self.ingest(self.reports(plan, anew=anew), name, labels)

    def reports(self, plan: "Plan", *, anew: bool = False) -> list[Path]:
        """Record by a plan, and return the reports; `anew` drops an unfinished attempt."""
        while_running = replace(plan, folder=recording.unfinished(plan))  # and there then
        typer.echo(f"recording: {while_running}", err=True)
        try:
            reports = recording.perform(plan, anew=anew, wait=self.wait)
        except KeyboardInterrupt:
            if recording.reports_in(recording.unfinished(plan)):
                complain(f"the recording is in {recording.unfinished(plan)}")
            raise
        typer.echo(f"recorded: {', '.join(map(str, reports))}", err=True)
        return reports

    def cost(self, plan: "Plan") -> "Cost":
        """Measure and print how much recording slows the program down."""

        def started(number: int, count: int) -> None:
            typer.echo(f"run {number} of {count}", err=True)

        return recording.calibrate(plan, wait=self.wait, started=started)

    def ingest(self, reports: list[Path], name: str, labels: Mapping[str, str]) -> "tracekit.Run":
        """Make a run of reports; an error message names the folder of the reports."""
        try:
            return self._ingest(reports, name, {**self.labels, **labels})
        except InputError as error:
            raise type(error)(error.what, _also(error.hint, reports[0].parent)) from error

    def _ingest(self, reports: list[Path], name: str, labels: Mapping[str, str]) -> "tracekit.Run":
        options: dict[str, Any] = {
            "name": name, "labels": labels, "store": self.store, "rules": self.rules,
            "nsys": self.nsys,
        }  # fmt: skip
        if len(reports) == 1:
            with progress_bar(reports[0]) as progress:
                return tracekit.ingest(reports[0], progress=progress, **options)[0]
        with progress_bars(name) as (progress, each):
            return tracekit.ingest(reports, progress=progress, report_progress=each, **options)[0]


def _also(hint: str | None, folder: Path) -> str:
    kept = f"the recording is in {folder}"
    return kept if hint is None else f"{hint}; {kept}"


def _program_name(program: Sequence[str]) -> str:
    """Return the name of a program: its script or module, not the Python that runs it."""
    words = list(recording.split(program).program)
    if recording.is_python(words):
        words = _behind_options(words[1:]) or words
    name = PurePath(words[0]).name
    return name.removesuffix(".py").lstrip("-") or "program"  # a name that begins so is an option


def _behind_options(words: Sequence[str]) -> list[str]:
    """Return the words after Python's options; empty for a program passed as text (``-c``)."""
    left = deque(words)
    while left and left[0].startswith("-") and left[0] not in {"-c", "-m", "-"}:
        if left.popleft() in {"-W", "-X"} and left:
            left.popleft()
    if left and left[0] == "-m":
        left.popleft()
    return [] if left and left[0] in {"-c", "-"} else list(left)


def _record_study(
    recorder: _Recorder,
    reference: str,
    where: Mapping[str, str],
    settings: Mapping[str, str],
    *,
    cpu: bool,
    dry_run: bool,
) -> Judged:
    study = recording.load_study(reference, settings)
    gpus, done = recording.gpu_count(), recorder.runs()
    if gpus and not (cpu or study.on_cpu):
        recorder = recorder.of_gpus()
    if strangers := study.strangers(done):
        complain(
            f"runs with the label study={study.name} that match none of its configurations:"
            f" {len(strangers):,}, such as {strangers[0]}; tables of the study contain them, too"
        )
    rows: list[dict[str, Any]] = []
    for configuration in study.configurations(where):
        obstacle = study.obstacle(configuration, gpus, cpu=cpu or study.on_cpu)
        if configuration.name in done:
            other = configuration.differs_from(done[configuration.name])
            status = "recorded already" if other is None else f"failed: recorded with {other}"
        elif obstacle is not None:
            status = f"left out: {obstacle}"
        elif dry_run:
            status = _configured(recorder, study, configuration, cpu=cpu).script
        else:
            status = _attempt(recorder, study, configuration, cpu=cpu)
        rows.append({**configuration.options, "run": configuration.name, "status": status})
    failed = any(row["status"].startswith("failed") for row in rows)
    answer = model.Answer(
        rows=rows_frame(rows),
        meta={"study": study.name, "title": study.title},
        title=f"study {study.name}",
        command="record",
    )
    return Judged(answer, _FAILED if failed else 0)


def _configured(
    recorder: _Recorder, study: "Study", configuration: "Configuration", *, cpu: bool
) -> "Plan":
    return recorder.plan(study.command(configuration, cpu=cpu), configuration.name)


def _attempt(
    recorder: _Recorder, study: "Study", configuration: "Configuration", *, cpu: bool
) -> str:
    """Record one configuration of a study; return the result in words, also of a failure."""
    plan = _configured(recorder, study, configuration, cpu=cpu)
    try:
        if reports := recording.reports_in(plan.folder):  # as an earlier attempt left them
            recorder.ingest(reports, configuration.name, configuration.labels)
        else:
            recorder.record(plan, configuration.name, configuration.labels, anew=True)
    except (RecordingError, InputError, UsageError) as error:
        complain(f"{configuration.name}: {error}")
        return f"failed: {error.what}"
    return "recorded"
