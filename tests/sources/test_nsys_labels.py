"""Labels that a program gives its run through NVTX."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder
from source_helpers import remarks

from tracekit.analysis.calls import process_ranks
from tracekit.sources import open_report
from tracekit.sources.nsys import read as read_nsys
from tracekit.sources.sqlite import SqliteFile
from tracekit.support.labels import MOST, label_fault
from tracekit.support.spool import GIB, Workspace


def labels_of(nsys: NsysBuilder) -> tuple[dict[str, str], tuple[str, ...]]:
    """Finish an export; return its labels, and the warnings about them."""
    if not nsys._created & {"CUPTI_ACTIVITY_KIND_KERNEL"}:
        nsys.kernel(1, 2)
    nsys.close()
    recording = open_report(nsys.path, Workspace())
    return dict(recording.labels), remarks(recording.trace())


def test_marks_and_ranges_of_any_domain_carry_labels(nsys):
    nsys.domain(100, 1, "tracekit")
    nsys.mark(1, "tracekit.label network=lenet")
    nsys.mark(2, "tracekit:label:batch=16", domain=1)
    nsys.mark(3, "tracekit.label method=p2p", registered=True, tid=101)
    nsys.push_pop(4, 9, "tracekit.label gpus=4")
    nsys.start_end(5, 9, "tracekit.label:lr=0.1", pid=200)
    nsys.mark(6, "tracekit.label  padded = a = b ")
    assert labels_of(nsys) == (
        {"network": "lenet", "batch": "16", "method": "p2p", "gpus": "4", "lr": "0.1"}, ()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("tracekit.label a=b=c", {"a": "b=c"}),
        ("tracekit.label a=", {"a": ""}),
        ("tracekit.label ä=ü ö", {"ä": "ü ö"}),
        ("tracekit.label a", {}),
        ("tracekit.label =b", {}),
        ("tracekit.label ==b", {}),
        ("tracekit.label", {}),
        ("tracekit.labels a=b", {}),
        (" tracekit.label a=b", {}),
        ("TRACEKIT.LABEL a=b", {}),
        ("tracekit_label a=b", {}),
        ("label a=b", {}),
        (None, {}),
    ],
)
def test_what_is_a_label(one, name, labels):
    one.mark(1, name)
    assert labels_of(one) == (labels, ())


@pytest.mark.parametrize(
    ("label", "fault"),
    [
        ("a=b\nc", "has a character that cannot be printed"),
        ("a=b\x1b[31m", "has a character that cannot be printed"),
        ("a\x07=b", "has a character that cannot be printed"),
        ("a=b\u2028c", "has a character that cannot be printed"),
        ("a=" + "x" * 201, "has more than 200 characters"),
        ("a" * 201 + "=x", "has more than 200 characters"),
    ],
)
def test_what_a_user_may_not_give_is_left_out(one, label, fault):
    key, _, value = label.partition("=")
    assert label_fault(key, value) == fault
    one.mark(1, f"tracekit.label {label}")
    one.mark(2, "tracekit.label fine=yes")
    found, warnings = labels_of(one)
    assert found == {"fine": "yes"}
    assert warnings == (f"a label that the program gave its run {fault} and was left out",)


def test_a_label_of_several_values_has_none(one):
    for at, value in enumerate("121"):
        one.mark(at, f"tracekit.label rank={value}", pid=100 + at)
        one.mark(at, "tracekit.label batch=16", pid=100 + at)
    found, warnings = labels_of(one)
    assert found == {"batch": "16"}
    [warning] = warnings
    assert warning.startswith("the program gave its run the label 'rank' with several values")


def test_a_run_has_no_more_labels_than_a_person_would_give_it(one):
    for number in range(MOST + 50):
        one.mark(number, f"tracekit.label key{number}={number}")
    found, warnings = labels_of(one)
    assert found == {f"key{number}": str(number) for number in range(MOST)}
    [warning] = warnings
    assert warning == "the program gave its run more than 100 labels; others are left out"


@pytest.mark.slow
def test_labels_are_the_same_however_few_rows_are_worked_on_at_once(one):
    one.push_pop(0, 9, "r")
    for number in range(60):
        one.mark(number, f"tracekit.label step={number}")
        one.mark(number, "tracekit.label batch=16")
    one.mark(400, "tracekit.label late=yes")
    one.close()
    for rows in (1, 7, 1000):
        workspace = Workspace(memory=GIB)
        workspace.rows = rows
        recording = read_nsys(SqliteFile(one.path), workspace)
        assert recording.labels == {"batch": "16", "late": "yes"}


def test_a_label_is_no_range(one):
    one.mark(1, "tracekit.label a=b")
    one.kernel(1, 2)
    one.close()
    assert open_report(one.path, Workspace()).trace().read("ranges").is_empty()


def test_a_mark_of_its_rank_is_kept_with_the_process(nsys):
    nsys.kernel(1, 2)
    nsys.mark(5, "tracekit.rank 1 of 2", tid=101)
    nsys.mark(6, "tracekit.rank 0 of 2", pid=200)
    nsys.mark(7, "tracekit.rank", pid=300)
    nsys.close()
    trace = open_report(nsys.path, Workspace()).trace()
    said = trace["ranges"].select("name", "start", "end", "open").collect()
    assert said.rows() == [
        ("tracekit.rank 1 of 2", 5, 5, False), ("tracekit.rank 0 of 2", 6, 6, False),
    ]  # fmt: skip
    found = process_ranks(trace).drop_nulls("rank").join(trace.read("processes"), on="process")
    assert sorted(found.select("pid", "rank", "rank_source").rows()) == [
        (100, 1, "program"), (200, 0, "program"),
    ]  # fmt: skip
