"""Student's t distribution, held against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analysis.statistics import quantile
from tracekit.analysis.statistics._differences import tail

FREEDOM = st.one_of(
    st.integers(1, 300), st.floats(0.2, 300), st.floats(300, 1e5), st.sampled_from([999.9, 1e3])
)


@settings(max_examples=examples(300))
@given(freedom=FREEDOM, reach=st.floats(0, 60))
def test_tails_are_those_of_scipy(freedom: float, reach: float) -> None:
    from scipy import special  # which takes a second

    np.testing.assert_allclose(
        tail(freedom, reach), special.stdtr(freedom, -reach), rtol=1e-10, atol=1e-300
    )


@settings(max_examples=examples(200))
@given(freedom=FREEDOM, level=st.floats(0.51, 0.9999))
def test_quantiles_are_those_of_scipy(freedom: float, level: float) -> None:
    from scipy import special  # which takes a second

    np.testing.assert_allclose(
        quantile(freedom, level), special.stdtrit(freedom, level), rtol=1e-10
    )


def test_many_at_once_are_as_one_by_one() -> None:
    freedom = np.array([0.5, 1, 2, 29.5, 999, 1000, 5e4, np.inf, np.nan, 0, -1])
    reach = np.linspace(0, 5, freedom.size)
    one_by_one = [float(tail(*each)) for each in zip(freedom, reach, strict=True)]
    np.testing.assert_allclose(tail(freedom, reach), one_by_one, rtol=1e-13)
    alone = [float(quantile(each, 0.975)) for each in freedom]
    np.testing.assert_allclose(quantile(freedom, 0.975), alone, rtol=1e-13)


@pytest.mark.parametrize(
    ("freedom", "level", "value"),
    [(1, 0.975, 12.706204736), (10, 0.95, 1.812461123), (np.inf, 0.975, 1.959963985)],
)
def test_quantiles_that_tables_print(freedom: float, level: float, value: float) -> None:
    assert float(quantile(freedom, level)) == pytest.approx(value, abs=1e-9)
    assert float(tail(freedom, value)) == pytest.approx(1 - level, abs=1e-9)


def test_ends() -> None:
    assert tail(3, [0, np.inf]).tolist() == [0.5, 0]
    assert np.isnan(tail([np.nan, 0, -1], 1)).all()
    assert np.isnan(quantile([np.nan, 0, -1], 0.975)).all()
