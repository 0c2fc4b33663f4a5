"""How processes of our own behave, and that they keep it to themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

_OWN = """
import gc, os
from tracekit.support.process import own_process, users_environment
theirs = dict(os.environ)
own_process()
print(os.environ["OPENBLAS_NUM_THREADS"], users_environment() == theirs, gc.get_threshold()[0])
"""


def _said(**environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _OWN], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.split()


def test_what_a_process_sets_for_itself_is_not_handed_on() -> None:
    assert _said() == ["1", "True", "200000"]


def test_what_the_user_has_set_stands_and_is_handed_on() -> None:
    assert _said(OPENBLAS_NUM_THREADS="7") == ["7", "True", "200000"]


_LOUD = """
import os, subprocess, sys
from tracekit.support.process import own_process, users_stderr
if OWN:
    own_process()
os.write(2, b"native;")
subprocess.run(["/bin/sh", "-c", "printf 'program;' >&2"], stderr=users_stderr())
sys.stderr.write("python")
"""


@pytest.mark.parametrize(
    ("own", "said"), [(True, "program;python"), (False, "native;program;python")]
)
def test_native_code_is_silent_in_a_process_of_our_own_and_programs_are_not(
    own: bool, said: str
) -> None:
    """Such as a thread of polars that an interrupt ends, which writes where in polars it did."""
    done = subprocess.run(
        [sys.executable, "-c", _LOUD.replace("OWN", str(own))],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stderr == said
