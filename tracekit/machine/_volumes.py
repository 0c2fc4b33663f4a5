"""Compute the bytes that a collective moves between GPUs, by algorithm; find rings over NVLinks.

Bytes are given as shares of S, the size of a collective as nccl-tests counts it: count x size for
all-reduce, broadcast and reduce; per-rank count x ranks x size for all-gather, reduce-scatter,
all-to-all, gather and scatter. Flags that a protocol sends along with the data are not included.

Sources: nccl-tests ``doc/PERFORMANCE.md`` (rings, factors); NCCL's maintainers on the traffic of
multicast and reduction in an NVSwitch (github.com/NVIDIA/nccl/issues/828 and 1506,
github.com/NVIDIA/nccl-tests/issues/238); NCCL's ``src/device/symmetric`` (which kernel reads and
writes which data of its peers); arxiv.org/abs/2506.20252 and ``ncclTransportPatConnect`` (PAT).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.machine._graph import Machine


_Tree = Sequence[tuple[int, int]]
_DIRECT = ("all_to_all", "gather", "scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_OF_PARTS = ("all_gather", "reduce_scatter")

IN_SWITCH = ("nvls", "nvls_tree", "multicast_one_shot", "reduced_one_shot")
"""Algorithms in which the NVSwitch reduces or multicasts."""

_PAIRS = {
    "one_shot": ("all_reduce",), "two_shot": ("all_reduce",), "direct": _OF_PARTS,
}  # fmt: skip
"""Algorithm in which each two GPUs exchange equal parts -> the collectives that use it."""

SYMMETRIC = {
    "AllGather_LL": "direct", "AllGather_ST": "direct", "AllGather_TmaST": "direct",
    "AllGather_LLMC": "nvls", "AllGather_STMC": "nvls", "AllGather_TmaSTMC": "nvls",
    "AllReduce_AGxLL_R": "one_shot", "AllReduce_AGxLLMC_R": "multicast_one_shot",
    "AllReduce_RSxLD_AGxST": "two_shot", "AllReduce_RSxTmaLD_AGxTmaST": "two_shot",
    "AllReduce_RSxLDMC_AGxSTMC": "nvls",
    "ReduceScatter_LL": "direct", "ReduceScatter_LD": "direct", "ReduceScatter_TmaLD": "direct",
    "ReduceScatter_LDMC": "nvls",
}  # fmt: skip
"""Name in NCCL's log -> algorithm of its kernels for symmetric memory."""


@dataclass(frozen=True)
class Edge:
    """Bytes that a collective moves from one GPU to another."""

    src: int | None
    dst: int | None
    """Numbers of the GPUs; None for the NVSwitch, if it reduces or multicasts."""
    share: Fraction
    """Bytes over this edge divided by S, the size of the collective."""


def bus_factor(collective: str, ranks: int) -> Fraction | None:
    """Return bus bandwidth / algorithm bandwidth (S over time) of a collective; None if unknown.

    These are the factors of nccl-tests (``doc/PERFORMANCE.md``), with n ranks: 2(n-1)/n for
    all-reduce; (n-1)/n for reduce-scatter, all-gather, all-to-all, gather and scatter; 1 for
    broadcast, reduce and send-receive.
    """
    if ranks < 1:
        return None
    part = Fraction(ranks - 1, ranks)
    factors = {
        "all_reduce": 2 * part,
        **dict.fromkeys(("reduce_scatter", "all_gather", *_DIRECT), part),
        **dict.fromkeys(("broadcast", "reduce", "send_recv"), Fraction(1)),
    }
    return factors.get(collective)


def shares(
    collective: str,
    gpus: Sequence[int],
    *,
    algorithm: str = "ring",
    rings: Sequence[Ring] = (),
    trees: Sequence[_Tree] = (),
    root: int | None = None,
    bidirectional: bool = False,
    islands: Sequence[Sequence[int]] = (),
) -> list[Edge]:
    """Return the bytes that a collective moves between each two GPUs, as shares of its size S.

    S is the bytes of the larger buffer (for an all-gather, the output), n the number of GPUs, h the
    number of GPUs at each switch, and m(k) the number of odd multiples of 2^k below n.

    ==============================  =====================================================
    all-reduce, ring                2(n-1)/n on each edge of the ring
    all-gather, reduce-scatter      (n-1)/n on each edge of the ring
    broadcast, reduce               1 on each edge but the one into (broadcast) or out of
                                    (reduce) the root
    all-reduce, tree                1 up and 1 down on each edge of the tree
    all-to-all                      1/n between each two, whatever the algorithm
    gather, scatter                 1/n between each other GPU and the root
    all-gather, PAT                 m(k)/n from each rank to rank + 2^k, for each 2^k below n
    reduce-scatter, PAT             the same to rank - 2^k
    all-reduce, one_shot            1 between each two
    all-reduce, two_shot            2/n between each two
    all-gather, reduce-scatter,     1/n between each two
    direct
    all-reduce, nvls or nvls_tree   (h+1)/h from each GPU to its switch, and back
    all-gather, nvls                1/n to the switch, 1 back
    reduce-scatter, nvls            1 to the switch, 1/n back
    all-reduce, multicast_one_shot  1 to the switch, n back
    all-reduce, reduced_one_shot    n to the switch, 1 back
    ==============================  =====================================================

    Each ring carries a part of the data in proportion to its NVLinks; all rings carry equal parts
    if the NVLinks of any ring are unknown. Trees carry equal parts. An all-reduce over several
    switches also crosses between switches: the i-th GPUs of all switches all-reduce S/h among
    themselves, half of it by each of NCCL's two binary trees over the switches. If switches have
    different numbers of GPUs, these transfers are unknown.

    Parameters
    ----------
    collective
        Name of a collective, as in the canonical tables.
    gpus
        Number of the GPU of each rank.
    algorithm
        Name of an algorithm in the table above, in upper or lower case.
    rings
        Rings of these GPUs; if empty, the ring in order of ranks.
    trees
        Trees of these GPUs: pairs of a GPU's number and its parent's number.
    root
        Rank of the root; None for collectives without one.
    bidirectional
        Whether each ring carries half of its part in either direction, as rings modelled from a
        topology do; rings of a log have one direction.
    islands
        The GPUs at each NVSwitch; if empty, all GPUs are at one switch.

    Returns
    -------
    Edges in order of GPU numbers, the switch last. Empty if no data move, or if the transfers are
    unknown (another algorithm or collective, or no root given).

    Raises
    ------
    UsageError
        If a ring or tree has other GPUs, a GPU has two ranks, or the root is no rank.
    """
    _check(gpus, rings, trees, root)
    if len(gpus) < 2 or (collective in _ROOTED and root is None):  # noqa: PLR2004
        return []
    if collective in _DIRECT:
        return _added(_direct(collective, gpus, root))
    name = algorithm.lower()
    found: Iterable[Edge] = ()
    if collective in _PAIRS.get(name, ()):
        found = _pairs(name, gpus)
    elif name in IN_SWITCH:
        found = _through_switch(name, collective, islands or [gpus])
    elif name == "tree" and collective == "all_reduce":
        found = _over_trees(trees)
    elif name == "pat":
        found = _over_dimensions(collective, gpus)
    elif name == "ring":
        parts = _parts(rings or [Ring(tuple(gpus))], bidirectional=bidirectional)
        top = None if root is None else gpus[root]
        found = (each for ring, part in parts for each in _over_ring(collective, ring, part, top))
    return _added(found)


def _check(
    gpus: Sequence[int], rings: Sequence[Ring], trees: Sequence[_Tree], root: int | None
) -> None:
    members = sorted(gpus)
    if len(set(members)) != len(members):
        raise UsageError(f"ranks share a GPU ({members}), and what they move crosses no link")
    for ring in rings:
        if sorted(ring.gpus) != members:
            raise UsageError(f"a ring of GPUs {list(ring.gpus)} is not one of GPUs {members}")
    for tree in trees:
        if {gpu for edge in tree for gpu in edge} - set(members):
            raise UsageError(f"a tree leads to a GPU that is not one of {members}")
    if root is not None and not 0 <= root < len(gpus):
        raise UsageError(f"root {root} is not one of {len(gpus)} ranks")


def _parts(rings: Sequence[Ring], *, bidirectional: bool) -> Iterator[tuple[Ring, Fraction]]:
    """Yield each ring (`bidirectional`: and its reverse), with the share of the data it carries."""
    widths = [ring.bricks or 0 for ring in rings]
    if not all(widths):
        widths = [1] * len(rings)
    for ring, width in zip(rings, widths, strict=True):
        part = Fraction(width, sum(widths))
        if bidirectional:
            yield ring, part / 2
            yield Ring(ring.gpus[::-1], ring.bricks), part / 2
        else:
            yield ring, part


def _over_ring(collective: str, ring: Ring, part: Fraction, root: int | None) -> Iterator[Edge]:
    around = Fraction(len(ring.gpus) - 1, len(ring.gpus))
    factors = {
        "all_reduce": 2 * around,
        "all_gather": around,
        "reduce_scatter": around,
        "broadcast": Fraction(1),
        "reduce": Fraction(1),
    }
    if collective not in factors:
        return
    for src, dst in ring.edges:
        last = {"broadcast": dst, "reduce": src}.get(collective)
        if root is None or last != root:
            yield Edge(src, dst, factors[collective] * part)


def _over_trees(trees: Sequence[_Tree]) -> Iterator[Edge]:
    for tree in trees:
        for child, parent in tree:
            yield Edge(child, parent, Fraction(1, len(trees)))
            yield Edge(parent, child, Fraction(1, len(trees)))


def _pairs(algorithm: str, gpus: Sequence[int]) -> Iterator[Edge]:
    """Yield the bytes between each two GPUs, for algorithms in which GPUs access each other.

    With a one-shot algorithm, a GPU sends all its data to each other GPU. With a two-shot
    algorithm, it first sends each other GPU a share of its input, then the share of the result that
    it has reduced.
    """
    parts = {"one_shot": Fraction(1), "two_shot": Fraction(2, len(gpus))}
    share = parts.get(algorithm, Fraction(1, len(gpus)))
    return (Edge(src, dst, share) for src, dst in itertools.permutations(gpus, 2))


def _through_switch(
    algorithm: str, collective: str, islands: Sequence[Sequence[int]]
) -> Iterator[Edge]:
    """Yield the bytes between GPUs and the NVSwitches that reduce or multicast for them.

    A part that the switch reduces is read from every GPU, including the one that requests it; a
    part that it multicasts is stored at every GPU. With several switches, the i-th GPU at each
    switch reduces and multicasts the i-th part, so only for an all-reduce the traffic at every
    switch is the same.
    """
    for gpus in islands:
        each = Fraction(1, len(gpus))
        exchanged = {
            ("nvls", "all_reduce"): (1 + each, 1 + each),
            ("nvls_tree", "all_reduce"): (1 + each, 1 + each),
            ("nvls", "all_gather"): (each, Fraction(1)),
            ("nvls", "reduce_scatter"): (Fraction(1), each),
            ("multicast_one_shot", "all_reduce"): (Fraction(1), Fraction(len(gpus))),
            ("reduced_one_shot", "all_reduce"): (Fraction(len(gpus)), Fraction(1)),
        }.get((algorithm, collective))
        across = algorithm.startswith("nvls") and collective == "all_reduce"
        if exchanged is None or (len(islands) > 1 and not across):
            return
        for gpu in gpus:
            yield Edge(gpu, None, exchanged[0])
            yield Edge(None, gpu, exchanged[1])
    if len({len(gpus) for gpus in islands}) == 1:
        part = Fraction(1, 2 * len(islands[0]))
        for rail in zip(*islands, strict=True):
            for child, parent in _two_trees(len(rail)):
                yield Edge(rail[child], rail[parent], part)
                yield Edge(rail[parent], rail[child], part)


def _two_trees(nodes: int) -> Iterator[tuple[int, int]]:
    """Yield (child, parent) for the edges of NCCL's two binary trees (``ncclGetDtree``).

    The second tree is the first one with nodes counted backwards or, for an odd number of nodes,
    shifted by one.
    """
    for child in range(1, nodes):
        parent = _parent(child, nodes)
        yield child, parent
        if nodes % 2:
            yield (child + 1) % nodes, (parent + 1) % nodes
        else:
            yield nodes - 1 - child, nodes - 1 - parent


def _parent(node: int, nodes: int) -> int:
    """Return a node's parent in a binary tree with the leaves at odd indices and the root at 0."""
    lowest = node & -node
    above = (node ^ lowest) | lowest << 1
    return above if above < nodes else node ^ lowest


def _over_dimensions(collective: str, gpus: Sequence[int]) -> Iterator[Edge]:
    """Yield the transfers of NCCL's PAT algorithm, between ranks whose distance is a power of 2.

    Each rank's data go along a binomial tree, to the most distant ranks first.
    """
    ranks = len(gpus)
    direction = {"all_gather": 1, "reduce_scatter": -1}.get(collective)
    if direction is None:
        return
    for step in (1 << k for k in range((ranks - 1).bit_length())):
        share = Fraction(len(range(step, ranks, 2 * step)), ranks)
        for rank, src in enumerate(gpus):
            yield Edge(src, gpus[(rank + direction * step) % ranks], share)


def _direct(collective: str, gpus: Sequence[int], root: int | None) -> Iterator[Edge]:
    share = Fraction(1, len(gpus))
    for src_rank, src in enumerate(gpus):
        for dst_rank, dst in enumerate(gpus):
            ends = {"gather": dst_rank, "scatter": src_rank}
            if src_rank != dst_rank and ends.get(collective, root) == root:
                yield Edge(src, dst, share)


def _added(edges: Iterable[Edge]) -> list[Edge]:
    sums: dict[tuple[int | None, int | None], Fraction] = defaultdict(Fraction)
    for edge in edges:
        sums[edge.src, edge.dst] += edge.share
    ends = sorted(sums, key=lambda ends: [(end is None, end or 0) for end in ends])
    return [Edge(*pair, sums[pair]) for pair in ends]


MOST_GPUS = 16
"""Largest number of GPUs among which rings are searched."""

_STEPS = 100_000
"""Number of GPUs that a search visits before it returns the best rings so far."""

Bricks = dict[frozenset[int], int]


@dataclass(frozen=True)
class Ring:
    """A ring of GPUs for a collective: it visits each GPU once, and returns to the first."""

    gpus: tuple[int, ...]
    """The GPUs in their order."""
    bricks: int | None = None
    """Number of NVLinks that the ring uses between two neighbours; None if its edges are not direct
    NVLinks."""

    @property
    def edges(self) -> list[tuple[int, int]]:
        """The edges in the direction of the ring."""
        return list(zip(self.gpus, self.gpus[1:] + self.gpus[:1], strict=True))


def find_rings(machine: Machine, gpus: Sequence[int]) -> list[Ring]:
    """Return rings over the direct NVLinks among the given GPUs, widest first.

    A ring uses equally many NVLinks on each of its edges: the least number that is still unused on
    any of them. Of all sets of rings, one that uses most NVLinks in total is returned. On a DGX-1
    with V100 the rings are 0-3-2-1-5-6-7-4 with two NVLinks per edge and 0-1-3-7-5-4-6-2 with one.
    Each ring stands for both directions of its NVLinks: it is listed once, from the GPU with the
    lowest number, in the direction whose second GPU has the lower number. Two GPUs with NVLinks
    form one ring.

    The result is a single ring in order of GPU numbers, with None as ``bricks``, if no ring of
    direct NVLinks visits all GPUs (they are joined by PCIe, or by an NVSwitch, where all orders are
    equal), or if there are more than `MOST_GPUS`. For GPUs of several hosts joined by a fabric,
    there are as many rings as GPUs on the smallest host: each visits one host after the other,
    follows the host's ring inside it, and enters it at another GPU than the other rings, so that
    all NICs are used alike.
    """
    members = sorted(set(gpus))
    if len(members) < 2:  # noqa: PLR2004
        return []
    host_of = {gpu: machine.host_of.get(f"GPU{gpu}", -1) for gpu in members}
    by_host = sorted((gpu for gpu in members if host_of[gpu] >= 0), key=host_of.__getitem__)
    parts = [[*group] for _, group in itertools.groupby(by_host, host_of.__getitem__)]
    if len(parts) > 1:
        inner = [find_rings(machine, part)[0].gpus if len(part) > 1 else (*part,) for part in parts]
        return _from_each_gpu(inner)
    bricks = {frozenset(pair): machine.bricks(*pair) for pair in itertools.combinations(members, 2)}
    if len(members) == 2:  # noqa: PLR2004
        found = [Ring(tuple(members), width) for width in bricks.values() if width]
    elif len(members) <= MOST_GPUS:
        found = _Search(members).best_of(bricks)
    else:
        found = []
    return found or [Ring(tuple(members))]


def _from_each_gpu(inner: Sequence[tuple[int, ...]]) -> list[Ring]:
    """Join the rings of hosts into rings over all GPUs; each ring enters a host at another GPU.

    `inner` has a ring of GPU numbers per host.
    """
    number = min(map(len, inner))
    turned = (
        [ring[first:] + ring[:first] for ring in inner for first in (turn * len(ring) // number,)]
        for turn in range(number)
    )
    return [Ring(tuple(itertools.chain(*parts))) for parts in turned]


@dataclass
class _Search:
    """Depth-first search for the set of rings that uses the most NVLinks; it starts greedily."""

    members: list[int]
    steps: int = _STEPS
    best: list[Ring] = field(default_factory=list)

    def best_of(self, bricks: Bricks) -> list[Ring]:
        self._extend([], bricks)
        widths: Counter[tuple[int, ...]] = Counter()
        for ring in self.best:
            widths[ring.gpus] += ring.bricks or 0
        rings = [Ring(gpus, width) for gpus, width in widths.items()]
        return sorted(rings, key=lambda ring: (-widths[ring.gpus], ring.gpus))

    def _extend(self, rings: list[Ring], left: Bricks) -> None:
        used = _total(rings)
        if used > _total(self.best):
            self.best = rings
        for width in range(max(left.values()), 0, -1):
            for gpus in self._cycles(left, width):
                ring = Ring(gpus, width)
                self._extend([*rings, ring], _without(left, ring))
                if self.steps < 0 or used + self._bound(left) <= _total(self.best):
                    return

    def _bound(self, left: Bricks) -> int:
        """Return an upper bound of the NVLinks that further rings can use; `left` are the unused.

        Each ring takes two NVLinks per GPU.
        """
        return min(
            sum(width for pair, width in left.items() if gpu in pair) // 2 for gpu in self.members
        )

    def _cycles(self, left: Bricks, width: int) -> Iterator[tuple[int, ...]]:
        """Yield rings whose neighbours all have `width` or more unused NVLinks between them."""
        self.steps -= 1
        wide = {
            gpu: [
                other
                for other in self.members
                if other != gpu and left[frozenset((gpu, other))] >= width
            ]
            for gpu in self.members
        }
        if all(len(others) > 1 for others in wide.values()):
            yield from self._walk([self.members[0]], wide)

    def _walk(self, path: list[int], wide: dict[int, list[int]]) -> Iterator[tuple[int, ...]]:
        self.steps -= 1
        if self.steps < 0:
            return
        if len(path) == len(self.members):
            if path[0] in wide[path[-1]] and path[1] < path[-1]:
                yield tuple(path)
            return
        for gpu in wide[path[-1]]:
            if gpu not in path:
                yield from self._walk([*path, gpu], wide)


def _total(rings: Sequence[Ring]) -> int:
    return sum(ring.bricks or 0 for ring in rings)


def _without(left: Bricks, ring: Ring) -> Bricks:
    taken = {frozenset(edge) for edge in ring.edges}
    return {
        pair: width - (ring.bricks or 0) if pair in taken else width for pair, width in left.items()
    }
