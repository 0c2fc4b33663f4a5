"""Several machines as one, of which nothing joins the parts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracekit.machine._graph import Machine, number_of

_NUMBER = re.compile(r"\d+$")


def side_by_side(machines: Sequence[Machine], warning: str) -> tuple[Machine, list[int]]:
    """Put machines beside each other: their nodes are numbered on from one to the next.

    Parameters
    ----------
    machines
        The machines, one or more.
    warning
        What a user should know about their being several.

    Returns
    -------
    All of them as one machine, which is as sure as the least sure of them; and by how much the
    numbers of each one's GPUs are raised.
    """
    nodes: dict[str, Mapping[str, object]] = {}
    links = []
    firsts: list[int] = []
    used: Counter[str] = Counter()
    for machine in machines:
        names = {node: _raised(node, used) for node in machine.graph}
        firsts.append(used["GPU"])
        nodes |= {names[node]: each for node, each in machine.graph.nodes(data=True)}
        links += [
            replace(link, ends=(names[link.ends[0]], names[link.ends[1]])) for link in machine.links
        ]
        for name in names.values():
            used[_prefix(name)] = max(used[_prefix(name)], number_of(name) + 1)
    sure = [machine.origin for machine in machines]
    together = Machine.of(
        " + ".join(machine.name for machine in machines),
        nodes,
        links,
        "assumed" if "assumed" in sure else sure[0],
        tuple(dict.fromkeys([*(text for one in machines for text in one.warnings), warning])),
    )
    tells_peers = all(machine.tells_peers for machine in machines)
    return replace(together, tells_peers=tells_peers), firsts


def _prefix(node: str) -> str:
    return _NUMBER.sub("", node)


def _raised(node: str, used: Mapping[str, int]) -> str:
    prefix = _prefix(node)
    return f"{prefix}{number_of(node) + used[prefix]}"
