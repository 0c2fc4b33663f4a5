from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracekit.export._tracks import Lanes

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=25)


def test_what_nests_or_follows_shares_a_lane() -> None:
    lanes = Lanes()
    spans = [(0, 10), (1, 5), (2, 3), (5, 10), (10, 12), (11, 14)]
    assert [lanes.place(*span) for span in spans] == [0, 0, 0, 0, 0, 1]


@given(SPANS)
def test_no_lane_holds_slices_that_cross(spans: list[tuple[int, int]]) -> None:
    ordered = sorted(((s, s + n) for s, n in spans), key=lambda span: (span[0], -span[1]))
    lanes = Lanes()
    placed = [(lanes.place(*span), span) for span in ordered]
    for at, (lane, (start, end)) in enumerate(placed):
        for other, (begin, until) in placed[:at]:
            crosses = lane == other and begin <= start < until < end
            assert not crosses
