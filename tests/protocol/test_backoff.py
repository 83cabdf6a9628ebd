from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.protocol import limits
from fencepost.protocol.backoff import backoff_seconds, spread_of
from fencepost.protocol.task import RetryPolicy
from tests.protocol.given import open_task

POLICY = RetryPolicy(backoff_base_seconds=10, backoff_max_seconds=360)


@pytest.mark.parametrize(
    ("failures", "ceiling"),
    [(1, 10), (2, 20), (3, 40), (6, 320), (7, 360), (8, 360), (50, 360), (10**9, 360)],
)
def test_the_wait_doubles_up_to_its_maximum(failures: int, ceiling: int) -> None:
    assert backoff_seconds(POLICY, failures=failures, spread=1.0) == ceiling
    assert backoff_seconds(POLICY, failures=failures, spread=0.0) == ceiling / 2


@pytest.mark.parametrize("failures", [0, -1])
def test_without_a_failure_there_is_no_wait(failures: int) -> None:
    assert backoff_seconds(POLICY, failures=failures, spread=1.0) == 0.0


@given(
    st.integers(1, limits.BACKOFF_BASE_SECONDS_MAX),
    st.integers(1, limits.BACKOFF_MAX_SECONDS_MAX),
    st.integers(1, limits.COUNTER_MAX),
    st.floats(0, 1, exclude_max=True),
)
def test_the_wait_stays_within_its_bounds(base: int, most: int, failures: int, spread: float) -> None:
    policy = RetryPolicy(backoff_base_seconds=base, backoff_max_seconds=most)
    wait = backoff_seconds(policy, failures=failures, spread=spread)
    assert min(base, most) / 2 <= wait <= most


@given(st.text(max_size=40), st.integers(0, limits.FENCING_TOKEN_MAX))
def test_every_observer_comes_to_the_same_spread(uid: str, token: int) -> None:
    spread = spread_of(open_task(uid=uid, token=token))
    assert 0 <= spread < 1
    assert spread == spread_of(open_task(uid=uid, token=token, version="99", failures=3))


def test_the_spread_differs_by_task_and_by_token() -> None:
    spreads = {spread_of(open_task(uid=f"uid-{n}", token=m)) for n in range(10) for m in range(10)}
    assert len(spreads) == 100
    assert min(spreads) < 0.2
    assert max(spreads) > 0.8
