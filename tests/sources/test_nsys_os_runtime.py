"""Long waits in the operating system: rows of the table `host`, of threads that take part."""

from __future__ import annotations

import pytest
from nsys_builder import NsysBuilder, global_tid
from source_helpers import column, remarks, rows, trace_of

LONG = 100_000


def _called(nsys: NsysBuilder, start: int, end: int | None, name: str, tid: int = 100) -> None:
    nsys.insert(
        "OSRT_API", start=start, end=end, globalTid=global_tid(100, tid), nameId=nsys.string(name)
    )


def test_long_waits_of_threads_that_take_part(nsys: NsysBuilder) -> None:
    nsys.push_pop(5, 6, "step")
    _called(nsys, 10, 10 + LONG, "poll")
    _called(nsys, 10, 9 + LONG, "poll")  # a trifle
    _called(nsys, 20, 20 + LONG, "pthread_cond_timedwait")
    _called(nsys, 30, 30 + LONG, "munmap")  # it works
    _called(nsys, 40, 40 + LONG, "sem_wait", tid=199)  # of a thread that does nothing else
    _called(nsys, 50, None, "poll")
    trace = trace_of(nsys)
    assert rows(trace, "host", "process", "thread", "start", "end", "library", "group", "name") == [
        (0, 0, 10, 10 + LONG, "os", "wait", "poll"),
        (0, 0, 20, 20 + LONG, "os", "wait", "pthread_cond_timedwait"),
    ]
    assert column(trace, "threads", "tid") == [100]
    assert remarks(trace) == ()


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("poll", "wait"), ("epoll_pwait", "wait"), ("read", "wait"), ("sem_clockwait", "wait"),
        ("futex", "wait"), ("waitpid", "wait"), ("usleep", "wait"), ("write", None),
        ("pthread_mutex_lock", "wait"), ("pthread_rwlock_wrlock", "wait"),
        ("pthread_mutex_trylock", None), ("preadv", None),
        ("fork", "child"), ("posix_spawnp", "child"),
    ],
)  # fmt: skip
def test_which_calls_wait(one: NsysBuilder, name: str, group: str | None) -> None:
    one.push_pop(5, 6, "step")
    _called(one, 10, 10 + LONG, name)
    assert column(trace_of(one), "host", "group") == ([group] if group else [])
