"""What is public stays as listed, and the parts of the package know of each other as designed."""

from __future__ import annotations

import ast
import graphlib
import importlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest
from architecture import statements

import tracekit
from tracekit import errors

PACKAGE = Path(tracekit.__file__).parent
SAMPLES = Path(__file__).parents[1] / "sample_traces"

PUBLIC = {
    "tracekit": """
        Answer Run RunRecord Store TracekitError __version__ annotate
        bubbles compare gate hang history ingest memory memory_points nccl_inspector
        open overhead project scaling select_runs stalls straggler_cost study
    """,
    "tracekit.analysis": """
        breakdown confusion features
        query summarise verdict_evidence verdict_meta
    """,
    "tracekit.analysis.arithmetic": "flops roofline",
    "tracekit.analysis.clocks": "Calls align aligned clock_calls clock_evidence",
    "tracekit.analysis.step_detail": """
        StepWork around around_steps details driving_threads idle_spans median_step
        ops_inside ranges_inside slowest_step stage_spans step_lengths step_spans whole_spans
        work_in_steps
    """,
    "tracekit.analysis.communication": """
        Traffic collective_calls collectives communicators latency
        latency_speedup links message_histogram nccl_inspector pointer_queries read_calls staging
    """,
    "tracekit.analysis.comparison": """
        Comparison Metric Recorded Skip apart carriers change_points check_limit
        compare compare_recordings history modes outliers steps_of_run typical_step unlike
    """,
    "tracekit.analysis.dependencies": """
        CHANGES critical_path parse_changes path_spans price_of require_one_clock whatif
    """,
    "tracekit.analysis.diagnosis": """
        FINDINGS KERNELS_OF NOTICED RULES WORSE against diagnose longest_examples stragglers
    """,
    "tracekit.analysis.hangs": "find_hang find_hang_in_run",
    "tracekit.analysis.idle_time": "idle idle_by idle_ranges",
    "tracekit.analysis.straggler_cost": "straggler_cost",
    "tracekit.analysis.studies": """
        basis_of BatchScope Bubbles COMPONENTS Hardware JOBS MEDIA Published beside
        api_by_run api_calls
        bubble_theory bubbles_of_run crossovers
        distribution exchange gains
        images_per_step job_features jobs_frame
        load_hardware load_published measured_against
        memory_points overhead overhead_matrix
        pipeline_bubbles profiler_overhead project_architectures read_jobs read_memory_table
        read_times scaling step_times study study_iterations study_notes
        study_row
        study_stages sweep_hardware weighted_means without_empty
    """,
    "tracekit.annotation": """
        ASK Annotation DONE IS_AT LATE RECORD REQUEST WINDOW annotate copy_hooks note_steps prepare
        step_time_variables variables
    """,
    "tracekit.support": "",
    "tracekit.support.parquet": "can_write write",
    "tracekit.attribution": "Rules attribute attribute_recording stored_findings",
    "tracekit.attribution.structure": "Doubt Pieces STEP_READINGS Structure Work find_structure",
    "tracekit.cli": "Json Judged RunsArgument app command main",
    "tracekit.machine": """
        IN_SWITCH Link Machine NcclLog PREFIXES Placed Relay Ring Route
        SYMMETRIC adjacency bus_factor find_machine find_rings is_topology
        link_table load_preset machine_of machine_toml nvlink_of peak_flops
        peak_memory_bandwidth place preset_names problems products_of_gpus
        read_machine_toml read_nccl_log read_topology recognise
        reducing_gpus relay_table route_table shares
        unknown_bandwidths with_bandwidths with_nics
    """,
    "tracekit.model": """
        Answer COLLECTIVE COLLECTIVES COLLECTIVE_CALLS Clock Column
        DERIVED DEVICES DEVICE_SUMS EVENT_RECORDS EVIDENCE Frames GRAPH_NODES
        GivenClock HOST HOST_MEMORY KERNEL_KINDS KEYS KIND KINDS MACHINE MEMORY METHOD
        METRIC Maker NO_KERNELS OPS PATHS PATH_SEPARATOR
        Headline PATH_TEXTS STEPS_UNMARKED WORK_MISSING
        PathNodes PathTree Place PolarsType RANGES RANGE_STYLE
        REPORTS Recording STAGE STAGES STAGE_SOURCE STAGE_SOURCES SYNCS SYNC_TYPE Stream
        Run Runs Stretch TABLES TESTED TRANSFERS Table Trace TraceWriter UNMATCHED
        VERDICT VERDICTS combine damaged_files in_any missing_files
        is_migration normalised_name path_number path_texts readable_names replace_table
        same_machine split_brackets traits with_clocks with_one_tree with_readable_names
    """,
    "tracekit.present": """
        ACCENT BYTE_UNITS CAUSE_COLOURS IDLE_COLOUR KIND_COLOURS PATH_COLOURS
        MINUS RENDERER STAGE_COLOURS TIME_UNITS Heading ShownColumn changes_figure
        check_figure_file one_browser colour_of
        comparison_figure count duration
        figure_layout figure_text heat_figure histogram_figure html
        latency_figure machine_figure machine_layout matrix_figure memory_figure
        memory_fit_figure notes overhead_figure percent printable readable_names
        records save_figure size_text scaling_figure stage_bars_figure
        stage_name terminal to_csv to_json to_junit to_markdown to_parquet to_sarif unit_of
        utilisation_figure with_headline with_readable_names
    """,
    "tracekit.present.pages": """
        PageSection answer_page answer_table figure_block figure_page fragment
        frame_table joined page_of view_page
    """,
    "tracekit.export": "FORMATS export",
    "tracekit.report": "AskedRun Library Section report_of",
    "tracekit.view": "View keep_tiles",
    "tracekit.recording": """
        Configuration Cost Nsys Plan STEPS Study Wanted attach by_window
        calibrate clear file_name find_nsys gpu_count in_turn is_python load_study perform plan
        profile_command reports_in split study_names unfinished
    """,
    "tracekit.runs": """
        DECLARED Run bubbles compare gate hang history ingest memory nccl_inspector
        open overhead project report_of scaling select_runs stalls straggler_cost
        question_of Reference OpenedRun is_simulated study
    """,
    "tracekit.papers": "Measured QUESTIONS dgx1_questions sensitivity",
    "tracekit.sources": """
        FORMATS Format Opening check_readable content_files open_report read read_smi
    """,
    "tracekit.sources.hang_dumps": "Dumps read_dumps",
    "tracekit.sources.job_timelines": "TIMELINE_SCHEMA read_job_timeline",
    "tracekit.sources.kineto": "is_kineto read",
    "tracekit.sources.nccl_inspector": """
        DROPPED_SCHEMA InspectorLogs RECORD_SCHEMA read_inspector_logs
    """,
    "tracekit.sources.nsys": "is_nsys read",
    "tracekit.sources.nvprof": "is_csv is_nvprof read read_csv",
    "tracekit.sources.rocprof": "is_rocpd is_rocprof read read_rocpd",
    "tracekit.sources.rpd": "is_rpd read",
    "tracekit.sources.xplane": "is_xplane read",
    "tracekit.sources.columnar": "ColumnarExport table_files",
    "tracekit.sources.sqlite": """
        BATCH_ROWS DTYPE MAGIC SqlType SqliteFile decoded is_packed regrouped unpack
    """,
    "tracekit.store": """
        DEFAULT_MEMORY NOT_YET Executor Kept Made OnMissing ReportOptions RunRecord Store
        SummaryValue Workers
        check_labels check_name file_digest file_size file_state is_named_as_file make_reports
        open_executor
        run_digest
    """,
    "tracekit.engine": """
        BY_RANGE BY_SEQUENCE Counted DeviceSums GroupTally GroupTotals Lines NEEDED Named
        Numbers RangeLayers Receivers StageSums StageTally Summed Work begun_in_steps by_host
        chosen_steps
        chosen_windows counted_steps cut extended first_iterations hand_out has_ops host_marks
        inclusive_kernels inclusive_ranges innermost_stretches inside_steps
        iterations_in kept_sums latest launch_groups layered_lengths
        median_lengths named_ranges numbered_alike on_host parse_iterations parse_ranks
        range_layers range_paths run_windows shown some_steps sorting split
        step_windows sum_in sum_up torn union_length with_path_texts with_steps within
    """,
    "tracekit.analysis.breakdowns": "breakdown",
    "tracekit.analysis.calls": """
        ASSUMED Found MEMBERS OF_GROUPS TOGETHER annotated_calls collective_calls
        collective_kernels communicator_groups communicators ends_by_arrivals excerpt
        find_collectives from_the_start group_members groups_of_ops hex_ids in_stretch log_processes
        job_size made_communicators members_of_rows
        mpi_calls nccl_messages only_value outermost participants
        process_ranks read_calls same_groups uncounted_waits unnamed_groups unrecorded_ranks
        unseen_participants unsized_of_others why_unsized with_devices with_iterations
        with_kernels within
    """,
    "tracekit.analysis.facts": """
        DEGREES Evidence Facts HOST KEYS LEAST MOST_NAMED OF_PROCESSES OF_WINDOWS OUTSIDE_STEPS
        RECORDERS REQUIREMENTS WAITING WIDEST chosen_keys columns_of confusion
        counted_micro_batches
        dividing how_to_record how_to_see_waits identify is_by_stage is_by_steps is_message
        is_pipeline
        largest leading_keys most_by_share
        parse_keys require_ops share_meaning step_phases summarise unknown_passes unseen
        verdict_evidence verdict_meta verdicts_note with_phases with_words work_of
    """,
    "tracekit.analysis.idle_account": """
        doubt_of_silence
        BEHIND BLOCKING_COPY CAUSES ITEM IdleSums OS_CALLS OwnPieces QUEUED_NS SWITCHES
        copies_of covered doubt_of_waiting host_activity idle_pieces idle_ranges idle_sums
        idle_windows in_ranges last_to_work loading_threads longest_gaps merged merged_in_batches
        of_part of_parts own_pieces_in pairs_of plain_name sampled with_idle_causes with_last_gaps
    """,
    "tracekit.analysis.memory": "largest_batch memory_extra memory_growth memory_table memory_use",
    "tracekit.analysis.operators": """
        has_sizes memory_bandwidths multiplies precision_by_name
        recorded_operators with_bounds with_peaks work_done
    """,
    "tracekit.analysis.overview": "features query",
    "tracekit.analysis.statistics": """
        COSINES ENOUGH FAR Flags Floats LEVEL LongRun METHOD NO_SLOWER Numbers OF_ROWS Regular
        SHOW_DRIFT SLOW STEADY Shift Skip before_a_short_end cold_steps differences kinds_of
        left_out_notes long_run mean_errors modes outliers p_values quantile regularly_slow shift
        adjusted_p_values welch_error within_kinds
    """,
    "tracekit.analysis.step_sums": """
        Cold KeySums Measured PARTS cold_meta cold_of group_lengths grouped_sums in_one_account
        numbering_meta parse_compare_keys peak_memory per_iteration stages_of step_times
        skipped_of steps_by_phase steps_of sums_by_keys with_hosts_matched
    """,
    "tracekit.analysis.traffic": "AMONG_GPUS Traffic copy_transfers crossings links",
}

EVERYWHERE = {"errors", "support", "_version"}
MAY_IMPORT = {
    "model": set(),
    "machine": {"model"},
    "sources": {"model", "machine"},
    "attribution": {"model", "machine"},
    "store": {"model", "sources", "attribution"},
    "engine": {"model"},
    "analysis": {"model", "machine", "engine"},
    "present": {"model", "analysis", "machine"},
    "report": {"model", "analysis", "machine", "present"},
    "export": {"model", "engine", "analysis"},
    "view": {"model", "analysis", "present"},
    "runs": {
        "model",
        "sources",
        "machine",
        "attribution",
        "store",
        "engine",
        "analysis",
        "present",
        "report",
        "export",
        "view",
    },
    "annotation": set(),
    "recording": {"annotation"},
    **{part: set() for part in EVERYWHERE},
}
"""What each part may import of ours, beside itself and `EVERYWHERE`; the rest may import all."""


SHARED = {
    "calls": set(),
    "statistics": set(),
    "operators": set(),
    "facts": {"calls", "operators"},
    "clocks": {"calls"},
    "memory": {"statistics", "facts"},
    "traffic": {"calls", "facts"},
    "idle_account": {"calls", "facts"},
    "step_sums": {"calls", "statistics", "facts", "memory", "traffic", "idle_account"},
}
"""Which other wings of `analysis` each wing that several read may import. All others are questions:
they import these, and never each other."""


def _packages() -> list[str]:
    return sorted(
        ".".join(file.parent.relative_to(PACKAGE.parent).parts)
        for file in PACKAGE.rglob("__init__.py")
    )


def test_what_is_listed_is_there() -> None:
    assert set(PUBLIC) <= set(_packages())


@pytest.mark.parametrize("name", _packages())
def test_public_names(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])  # of a new package, until others rely on it
    if name in PUBLIC:
        assert sorted(names) == sorted(PUBLIC[name].split())
    assert len(set(names)) == len(names)
    for each in names:
        assert getattr(module, each) is not None


def test_the_front_door_lists_and_refuses_names() -> None:
    assert set(tracekit.__all__) <= set(dir(tracekit))
    with pytest.raises(AttributeError, match="'tracekit' has no attribute 'breakdowns'"):
        _ = tracekit.breakdowns


def test_every_public_thing_says_what_it_is() -> None:
    for name in _packages():
        module = importlib.import_module(name)
        assert module.__doc__
        for each in getattr(module, "__all__", ()):
            thing = getattr(module, each)
            if isinstance(thing, type | FunctionType):
                assert thing.__doc__, f"{name}.{each}"


def test_errors_are_the_tree_that_their_module_draws() -> None:
    classes: list[type[errors.TracekitError]] = [
        thing for thing in vars(errors).values() if isinstance(thing, type)
    ]
    assert errors.__doc__ is not None
    for each in classes:
        assert issubclass(each, errors.TracekitError)
        assert each.__name__ in errors.__doc__
        assert each.__doc__
    assert str(errors.UsageError("this is wrong", "do that")) == "this is wrong: do that"
    assert str(errors.UsageError("this is wrong")) == "this is wrong"
    codes = {each.__name__: each.exit_code for each in classes if each.exit_code != 2}
    assert codes == {"UndecidedError": 3}


def _loaded_by(statement: str) -> set[str]:
    """Return the packages that a fresh interpreter holds after a statement."""
    return {name.partition(".")[0] for name in _modules_after(statement)}


def _modules_after(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter holds after a statement."""
    program = (
        f"import sys\nfrom contextlib import suppress\n{statement}\nprint()\nprint(*sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("statement", ["import tracekit", "import tracekit.cli"])
def test_importing_is_cheap(statement: str) -> None:
    heavy = {
        "polars",
        "sqlalchemy",
        "plotly",
        "networkx",
        "adbc_driver_manager",
        "adbc_driver_sqlite",
        "dask",
    }
    assert _loaded_by(statement) & heavy == set()


@pytest.mark.slow
def test_a_name_is_loaded_when_it_is_used() -> None:
    assert "polars" not in _loaded_by("import tracekit; tracekit.TracekitError")
    assert "polars" not in _loaded_by("import tracekit.analysis")
    assert "polars" not in _loaded_by("import tracekit.analysis; tracekit.analysis.breakdown")
    assert "polars" in _loaded_by("import tracekit.analysis; tracekit.analysis.features")


NEVER = {
    "plotly", "networkx", "scipy", "numba", "dask", "adbc_driver_sqlite", "nanoarrow", "sqlalchemy",
    "asyncio", "unittest", "multiprocessing", "pydantic", "tracekit.analysis.traffic._links",
    "tracekit.cli._record",
}  # fmt: skip
"""What no breakdown by stage and no comparison of stored runs takes."""
NOTHING_OF = ("tracekit.machine.", "tracekit.sources.", "tracekit.attribution.")
"""Packages whose doors may be there, but no module behind these."""


@pytest.mark.slow
@pytest.mark.usefixtures("samples_read_once")
def test_a_breakdown_loads_what_it_takes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    tracekit.ingest(SAMPLES / "ddp_4gpu.sqlite", name="ddp", store=store)
    tracekit.ingest(SAMPLES / "p2p_2gpu_start_end.sqlite", name="p2p", store=store)
    asked = "from tracekit.cli import main\nsys.argv[1:] = {}\nwith suppress(SystemExit): main()"
    for words in (["breakdown", "ddp"], ["compare", "ddp", "p2p"]):
        loaded = _modules_after(asked.format([*words, "--store", str(store)]))
        assert loaded & NEVER == set()
        assert not [name for name in loaded if name.startswith(NOTHING_OF)]


@cache
def _imports(file: Path) -> list[str]:
    """Return the full names of what a module imports of this package."""
    found: list[str] = []
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (each.name for each in node.names if each.name.startswith("tracekit"))
        elif isinstance(node, ast.ImportFrom):
            # Annotations are loaded by another name into programs whose Python has no tracekit.
            assert node.level == 0 or file.parent.name == "annotation", f"{file}: relative import"
            if (node.module or "").partition(".")[0] == "tracekit":
                found += (f"{node.module}.{each.name}" for each in node.names)
    return found


def _imported_by(names: list[str]) -> list[tuple[str, str]]:
    return [(name, imported) for name in names for imported in _imports(PACKAGE / name)]


FILES = sorted(file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py"))


@pytest.mark.slow
def test_imports_follow_the_design() -> None:
    for name, imported in _imported_by(FILES):
        part = name.partition("/")[0].removesuffix(".py")
        _, _, target = imported.partition(".")
        other, _, rest = target.partition(".")
        if other == part:
            continue
        if part in MAY_IMPORT:
            assert other in MAY_IMPORT[part] | EVERYWHERE, f"{name} imports {imported}"
        is_package = (PACKAGE / other).is_dir()
        is_private = any(word.startswith("_") for word in rest.split("."))
        assert not (is_package and is_private), f"{name} imports {imported}, private"


WINGED = [name for name in FILES if name.startswith("analysis/") and name.count("/") == 2]


def test_what_analysis_holds_is_in_wings() -> None:
    assert {file.name for file in (PACKAGE / "analysis").glob("*.py")} == {"__init__.py"}
    assert set(SHARED) <= {name.split("/")[1] for name in WINGED}


@pytest.mark.slow
def test_wings_face_one_way() -> None:
    for name, imported in _imported_by(WINGED):
        wing = name.split("/")[1]
        part, _, target = imported.removeprefix("tracekit.").partition(".")
        other, _, rest = target.partition(".")
        if part != "analysis" or other == wing:
            continue
        assert other in SHARED.get(wing, SHARED), f"{name} imports {imported}"
        assert not rest.startswith("_"), f"{name} imports {imported}, private"


def _module(name: str) -> Path | None:
    """Return the file of a module or package, None where a name is neither."""
    place = PACKAGE.parent / name.replace(".", "/")
    return next(
        (file for file in (place / "__init__.py", place.with_suffix(".py")) if file.is_file()), None
    )


def _home(name: str) -> Path:
    """Return the file that a name comes from, whichever packages hand it on."""
    own = _module(name)
    package, _, last = name.rpartition(".")
    file = own or _module(package)
    assert file, name
    if own or file.name != "__init__.py":
        return file
    handed_on = (each for each in _imports(file) if each.rpartition(".")[2] == last)
    return next((_home(each) for each in handed_on if each != name), file)


@pytest.mark.slow
def test_no_modules_import_each_other() -> None:
    # What a package hands on is no import of its own, but of those who take it from there.
    modules = [PACKAGE / name for name in FILES if not name.endswith("__init__.py")]
    known = {file: {_home(name) for name in _imports(file)} - {file} for file in modules}
    graphlib.TopologicalSorter(known).prepare()  # which raises where there is a circle


def test_the_contribution_guide_prints_the_rule_of_imports() -> None:
    rule = [
        f"    {part}: {', '.join(sorted(may, key=list(MAY_IMPORT).index)) or '-'}"
        for part, may in MAY_IMPORT.items()
        if part not in EVERYWHERE
    ]
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    assert "\n".join(rule) in page


def test_the_design_names_parts_that_exist() -> None:
    for part in MAY_IMPORT:
        assert (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file(), part
