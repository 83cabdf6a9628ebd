"""Several workers at one queue: how they share its pages out among them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fencepost.ports import Answer, Cause, Refused
from fencepost.protocol.mutation import Claim, Mutation
from fencepost.testing.memory import MemoryStore
from fencepost.worker.settings import SHARED_PAGES
from tests.worker.scene import Scene, echo

LOST = Refused(cause=Cause.PRECONDITION, message="another was first")


def losing(scene: Scene, *turns: int) -> Callable[[Mutation], Answer | None]:
    """The claims of these numbers, counted from 1, are won by somebody else."""

    def before(mutation: Mutation) -> Answer | None:
        return LOST if isinstance(mutation, Claim) and len(scene.store.of_kind(Claim)) in turns else None

    return before


def places(scene: Scene) -> list[int]:
    """The tasks in the order in which they were tried, by their place in the store's order."""
    return [int(claim.key.name) for claim in scene.store.of_kind(Claim)]  # type: ignore[union-attr]


async def test_a_page_is_taken_in_order_while_nobody_gets_in_the_way(scene: Scene) -> None:
    for number in range(20):
        scene.store.put("q", name=f"{number:02}")
    await scene.work(echo())
    assert places(scene) == list(range(20))


async def test_after_a_lost_claim_the_rest_is_taken_in_order_from_another_place(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random.Random, "randrange", lambda self, places: places // 3)
    for number in range(40):
        scene.store.put("q", name=f"{number:02}")
    scene.store.before = losing(scene, 1)
    await scene.work(echo())
    # The lost one was not settled by anybody, so the next page shows it.
    assert places(scene) == [0, *range(27, 40), *range(1, 27), 0]


async def test_a_page_is_larger_after_one_that_had_to_be_shared(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    listed = MemoryStore.claimable

    async def claimable(self: MemoryStore, queue: str, limit: int):  # type: ignore[no-untyped-def]
        asked.append(limit)
        return await listed(self, queue, limit)

    monkeypatch.setattr(MemoryStore, "claimable", claimable)
    for number in range(12):
        scene.store.put("q", name=f"{number:02}")
    scene.store.before = losing(scene, 2)
    await scene.work(echo(), page=4)
    assert asked == [4, 4 * SHARED_PAGES, 4]
