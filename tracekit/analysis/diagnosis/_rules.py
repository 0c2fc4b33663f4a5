"""Table of all rules by name, with the certainty that each may claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tracekit.analysis.diagnosis import (
    _compute_rules,
    _exchange_rules,
    _host_rules,
    _run_rules,
)
from tracekit.analysis.diagnosis._facts import Facts
from tracekit.analysis.diagnosis._finding import Finding, Sure
from tracekit.support.files import schemas
from tracekit.support.toml import parse_toml

Rule = Callable[[Facts], Finding | None]

RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        _host_rules.input_bound,
        _exchange_rules.exposed_collectives,
        _exchange_rules.late_buckets,
        _exchange_rules.small_buckets,
        _exchange_rules.stragglers,
        _host_rules.sync_in_loop,
        _host_rules.pageable_copies,
        _host_rules.unhidden_copies,
        _host_rules.small_copies,
        _host_rules.unified_memory,
        _host_rules.launch_bound,
        _host_rules.off_cpu,
        _host_rules.busy_host,
        _host_rules.compilation,
        _host_rules.allocation_in_loop,
        _run_rules.cold_steps,
        _run_rules.slow_links,
        _run_rules.slow_clocks,
        _run_rules.evaluation_too_often,
        _compute_rules.fp32_products,
        _compute_rules.layout_transposes,
        _compute_rules.unfused_elementwise,
        _compute_rules.tiny_kernels,
        _compute_rules.largest_headroom,
        _exchange_rules.central_update,
        _exchange_rules.pipeline_bubbles,
        _host_rules.profiler_overhead,
        _run_rules.missing_evidence,
    )
}
"""Each of them says something, or nothing."""

_ENOUGH = 40
"""A rule with fewer judged claims says `likely` at best."""
_OFTEN = 20
"""A rule that is wrong more than once in so many says `perhaps`."""


@cache
def score() -> Mapping[str, Any]:
    """Return ``claims, wrong`` of each rule, as ``benchmarks/findings.py`` judged them."""
    path = schemas() / "findings" / "score.toml"
    return parse_toml(path.read_text(encoding="utf-8"))


def at_most(rule: str, sure: Sure) -> Sure:
    """Limit a rule's certainty to how often it was right before."""
    claims, wrong = (score().get(rule, {}).get(key, 0) for key in ("claims", "wrong"))
    if _OFTEN * wrong > claims:
        return "perhaps"
    return "likely" if sure == "measured" and claims < _ENOUGH else sure
