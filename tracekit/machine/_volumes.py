"""How many bytes a collective moves over each edge, by the algorithms that libraries use.

All are shares of S, the size of a collective as nccl-tests counts it: count x size for all-reduce,
broadcast and reduce; per-rank count x ranks x size for all-gather, reduce-scatter, all-to-all,
gather and scatter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tracekit.errors import UsageError
from tracekit.machine._rings import Ring

_DIRECT = ("all_to_all", "gather", "scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True)
class Edge:
    """What a collective moves from one GPU to another.

    Parameters
    ----------
    src, dst
        Numbers of the GPUs.
    share
        Bytes over this edge as a share of S.
    """

    src: int
    dst: int
    share: Fraction


@dataclass(frozen=True)
class Tree:
    """A tree of GPUs.

    Parameters
    ----------
    edges
        Pairs of a GPU and its parent.
    """

    edges: tuple[tuple[int, int], ...]


def bus_factor(collective: str, ranks: int) -> Fraction | None:
    """Return bus bandwidth over algorithm bandwidth (S over time) of a collective.

    These are the factors of nccl-tests (``doc/PERFORMANCE.md``), with n ranks: 2(n-1)/n for
    all-reduce; (n-1)/n for reduce-scatter, all-gather, all-to-all, gather and scatter; 1 for
    broadcast, reduce and send-receive. None for others.
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


def star_bytes(ranks: int, size: int) -> int:
    """Return the bytes that are moved in all to gather `size` at one GPU and to send it back."""
    return 2 * (ranks - 1) * size


def ring_bytes(ranks: int, size: int) -> Fraction:
    """Return the bytes that each GPU sends for an all-reduce of `size` over rings."""
    return Fraction(2 * (ranks - 1) * size, ranks)


def shares(
    collective: str,
    gpus: Sequence[int],
    *,
    algorithm: str = "ring",
    rings: Sequence[Ring] = (),
    trees: Sequence[Tree] = (),
    root: int | None = None,
    bidirectional: bool = False,
) -> list[Edge]:
    """Return what a collective moves over each edge between GPUs, as shares of S.

    ==========================  =========================================================
    all-reduce, ring            2(n-1)/n on each edge of the ring
    all-gather, reduce-scatter  (n-1)/n on each edge of the ring
    broadcast, reduce           1 on each edge but the one into (broadcast) or out of
                                (reduce) the root
    all-reduce, tree            1 up and 1 down on each edge of the tree
    all-to-all                  1/n between each two, whatever the algorithm
    gather, scatter             1/n between each other GPU and the root
    ==========================  =========================================================

    Rings carry parts in proportion to their bricks (equal parts where those of any are not known),
    trees carry equal parts.

    Parameters
    ----------
    collective
        One of the collectives of the canonical tables.
    gpus
        Number of the GPU of each rank.
    algorithm
        ``ring`` or ``tree``, in any case.
    rings
        Rings of these GPUs; without any, the ring in order of ranks.
    trees
        Trees of these GPUs.
    root
        Rank of the root, for collectives that have one.
    bidirectional
        Whether each ring carries half of its part in either direction, as rings do that are
        modelled from a topology; those of a log have one.

    Returns
    -------
    Edges in order of their GPUs; none where nothing is moved, or how is not known (another
    algorithm, a collective that is none of these, a root that is not given).

    Raises
    ------
    UsageError
        If a ring or tree is one of other GPUs, a GPU has two ranks, or the root is not among the
        ranks.
    """
    _check(gpus, rings, trees, root)
    if len(gpus) < 2 or (collective in _ROOTED and root is None):  # noqa: PLR2004
        return []
    if collective in _DIRECT:
        return _added(_direct(collective, gpus, root))
    if algorithm.lower() == "tree":
        return _added(_over_trees(trees)) if collective == "all_reduce" else []
    if algorithm.lower() != "ring":
        return []
    parts = _parts(rings or [Ring(tuple(gpus))], bidirectional=bidirectional)
    top = None if root is None else gpus[root]
    return _added(each for ring, part in parts for each in _over_ring(collective, ring, part, top))


def _check(
    gpus: Sequence[int], rings: Sequence[Ring], trees: Sequence[Tree], root: int | None
) -> None:
    members = sorted(gpus)
    if len(set(members)) != len(members):
        raise UsageError(f"ranks share a GPU ({members}), and what they move crosses no link")
    for ring in rings:
        if sorted(ring.gpus) != members:
            raise UsageError(f"a ring of GPUs {list(ring.gpus)} is not one of GPUs {members}")
    for tree in trees:
        if {gpu for edge in tree.edges for gpu in edge} - set(members):
            raise UsageError(f"a tree leads to a GPU that is not one of {members}")
    if root is not None and not 0 <= root < len(gpus):
        raise UsageError(f"root {root} is not one of {len(gpus)} ranks")


def _parts(rings: Sequence[Ring], *, bidirectional: bool) -> Iterator[tuple[Ring, Fraction]]:
    """Yield rings, in one or both directions, with the part of S that each carries."""
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


def _over_trees(trees: Sequence[Tree]) -> Iterator[Edge]:
    for tree in trees:
        for child, parent in tree.edges:
            yield Edge(child, parent, Fraction(1, len(trees)))
            yield Edge(parent, child, Fraction(1, len(trees)))


def _direct(collective: str, gpus: Sequence[int], root: int | None) -> Iterator[Edge]:
    share = Fraction(1, len(gpus))
    for src_rank, src in enumerate(gpus):
        for dst_rank, dst in enumerate(gpus):
            ends = {"gather": dst_rank, "scatter": src_rank}
            if src_rank != dst_rank and ends.get(collective, root) == root:
                yield Edge(src, dst, share)


def _added(edges: Iterable[Edge]) -> list[Edge]:
    sums: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for edge in edges:
        sums[edge.src, edge.dst] += edge.share
    return [Edge(src, dst, share) for (src, dst), share in sorted(sums.items())]
