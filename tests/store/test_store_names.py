"""What a run may be called."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracekit.errors import UsageError
from tracekit.store import check_name
from tracekit.store._run_record import free_name

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=210)


@pytest.mark.parametrize(
    "name", ["a", "resnet50, 8 GPUs", "été", "a-b", "a@b", "x" * 200, "..", "7"]
)
def test_possible_names(name):
    check_name(name)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("a ", "space"),
        ("x" * 201, "200"),
        ("-a", "begins with '-'"),
        ("@a", "begins with '@'"),
        ("a/b", "slash"),
        ("a\tb", "printed"),
        ("a\x00", "printed"),
        ("a\x85b", "printed"),
        ("a\u2028b", "printed"),
        ("a\udc80b", "printed"),
    ],
)
def test_impossible_names(name, fault):
    with pytest.raises(UsageError, match=fault):
        check_name(name)


@pytest.mark.parametrize(
    ("wanted", "taken", "name"),
    [
        ("run", [], "run"),
        ("run", ["run"], "run-2"),
        ("run", ["run", "run-2", "run-4"], "run-3"),
        ("--@ x/y\n", [], "x_y_"),
        ("@", ["run"], "run-2"),
        ("x" * 300, ["x" * 200], "x" * 198 + "-2"),
    ],
)
def test_free_names(wanted, taken, name):
    assert free_name(wanted, taken) == name


@given(wanted=ANY_TEXT, number=st.integers(0, 12))
@example(wanted="a" * 197 + " " + "b" * 9, number=1)
@example(wanted="\ud800", number=2)
def test_every_default_becomes_new_names_that_are_possible(wanted, number):
    taken = []
    for _ in range(number + 1):
        taken.append(free_name(wanted, taken))
        check_name(taken[-1])
    assert len(set(taken)) == number + 1


@given(ANY_TEXT)
def test_a_possible_name_is_used_as_it_is(name):
    try:
        check_name(name)
    except UsageError:
        return
    assert free_name(name, []) == name
