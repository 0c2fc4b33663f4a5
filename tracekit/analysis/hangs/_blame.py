"""Tell causes of a hang from consequences: a rank that waits elsewhere is no cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Problem = dict[str, Any]
_OWN = ("type", "size", "dtype", "order")
"""Problems that are causes by themselves: nobody waits into a wrong size."""


def with_roles(problems: Sequence[Problem]) -> Sequence[Problem]:
    """Return problems with their ``role``: causes first, and those that hold up most ranks.

    A rank that is missing in one collective, and waits in another one, is held up there: `cause` is
    where those who are missing wait nowhere, or wait for each other in a circle (then ``problem``
    is deadlock). All else is a `consequence`; `unknown` where everyone joined and nothing tells who
    holds it up.
    """
    waits: dict[int, set[int]] = {}
    for each in problems:
        if each["problem"] == "missing":
            for rank in _ranks(each, "waiting"):
                waits.setdefault(rank, set()).update(_ranks(each, "ranks"))
    wrong = {
        rank for each in problems if each["problem"] in _OWN
        for rank in _ranks(each, "ranks") + _ranks(each, "waiting")
    }  # fmt: skip
    rings = _in_circles(waits)
    told = [_with_role(each, waits, wrong, rings) for each in problems]
    has_cause = any(each["role"] == "cause" for each in told)
    told = [
        {**each, "role": "consequence"} if has_cause and each["role"] == "unknown" else each
        for each in told
    ]
    order = ("cause", "unknown", "consequence")
    return sorted(
        told,
        key=lambda each: (
            order.index(str(each["role"])), -len(_ranks(each, "waiting")), str(each["group"])
        ),
    )  # fmt: skip


def _with_role(
    problem: Problem, waits: Mapping[int, set[int]], wrong: set[int], rings: set[int]
) -> Problem:
    if problem["problem"] in _OWN:
        return {**problem, "role": "cause"}
    ranks = _ranks(problem, "ranks")
    if problem["problem"] != "missing":
        return {**problem, "role": "cause" if ranks else "unknown"}
    free = [rank for rank in ranks if rank not in waits and rank not in wrong]
    if free:
        return {**problem, "role": "cause", "ranks": free}
    if any(rank in rings for rank in ranks) and any(
        rank in rings for rank in _ranks(problem, "waiting")
    ):
        return {**problem, "role": "cause", "problem": "deadlock"}
    return {**problem, "role": "consequence"}


def _in_circles(waits: Mapping[int, set[int]]) -> set[int]:
    """Return the ranks that wait for themselves, by way of others.

    Ranks that nobody waits for, or that wait for nobody, are taken away until none is left to take;
    those that remain lie in circles or between them.
    """
    left = {rank: set(others) for rank, others in waits.items()}
    while True:
        waited_for = set().union(*left.values()) if left else set()
        going = [rank for rank, others in left.items() if not others or rank not in waited_for]
        outside = waited_for - set(left)
        if not going and not outside:
            return set(left)
        left = {
            rank: others - set(going) - outside
            for rank, others in left.items()
            if rank not in going
        }


def _ranks(problem: Problem, key: str) -> list[int]:
    return list(problem[key])
