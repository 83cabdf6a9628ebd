"""Choosing and claiming: which candidates to try, in which order, and when to look again.

A page is taken in the store's order, higher priority first, until another worker gets in the way. Workers
list the same page, and whoever meets a claimed candidate is probably on another one's heels: it goes on from
a place chosen at random, in order again, so that the workers share the page out in stretches. (Choosing each
candidate at random was tried: workers then meet the more often the less of the page is left, which costs a
lost claim for every second task of eight workers; stretches cost one for every sixth.) A page is used up
before the next list, or until others have won too many claims of it; after such a page the next one is
larger, so that there is more to share. The claim itself compares everything: a candidate is a hint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from fencepost.ports import Answer, Applied, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol.fencing import next_token
from fencepost.protocol.mutation import Claim
from fencepost.protocol.task import Candidate
from fencepost.worker.failures import SchemaTooOld
from fencepost.worker.holding import Holding
from fencepost.worker.settings import LOST_CLAIMS_MAX, SHARED_PAGES
from fencepost.worker.workplace import LOG, Workplace

_REFUSED_REMEMBERED_MAX: Final = 1024


class Claiming:
    """Claims from the queues in their order: a later one only while the earlier ones have nothing."""

    def __init__(self, place: Workplace, queues: Sequence[str]) -> None:
        self._place = place
        self._queues = queues
        self._refused: dict[str, str] = {}  # UID -> version that admission refused a claim of
        self._lost = 0  # claims of the newest page that others won
        self.found_candidates = False  # in the newest list

    async def claims(self) -> AsyncIterator[tuple[str, Holding, float]]:
        """The claims of one page, one by one: queue, lease, and when the list was asked for.

        Ends when the page is used up or stale, or the worker is told to stop. Raises `StoreUnavailable`,
        `StoreRefused` or `SchemaTooOld`.
        """
        queue, page, listed = await self._page()
        self._lost = 0
        self.found_candidates = bool(page)
        while page and not self._place.stopping.requested and not self._place.outbox.full:
            holding = await self._claim(page.popleft())
            if holding is not None:
                yield queue, holding, listed
                continue
            self._lost += 1
            if self._lost >= LOST_CLAIMS_MAX:
                return
            page.rotate(self._place.random.randrange(len(page)) if page else 0)

    async def _page(self) -> tuple[str, deque[Candidate], float]:
        size = self._place.settings.page * (SHARED_PAGES if self._lost else 1)
        for queue in self._queues:
            listed = self._place.clock()
            page = deque(c for c in await self._place.store.claimable(queue, size) if self._is_new(c))
            if page:
                return queue, page, listed
        return "", deque(), 0.0

    def _is_new(self, candidate: Candidate) -> bool:
        return self._refused.get(candidate.uid) != candidate.version

    async def _claim(self, candidate: Candidate) -> Holding | None:
        place = self._place
        began = place.clock()
        answer = await place.write(
            Claim(
                key=candidate.key,
                uid=candidate.uid,
                version=candidate.version,
                token=next_token(candidate.token),
                holder=place.outbox.holder,
                account=place.account,
                outbox_mark=place.outbox.mark,
                at=place.now(),
            )
        )
        if isinstance(answer, Applied):
            place.tally["claims"] += 1
            return Holding(place, answer.task, began=began)
        self._note(candidate, answer)
        return None

    def _note(self, candidate: Candidate, answer: Answer) -> None:
        """Go on to the next candidate, or raise what ends the turn."""
        self._place.tally["claims lost"] += 1
        if not isinstance(answer, Refused):
            LOG.warning("the claim of %s is uncertain; the next turn looks for it", candidate.key)
            return
        match answer.cause:
            case Cause.OVERLOADED:
                raise StoreUnavailable(answer.message, answer.retry_after_seconds)
            case Cause.FORBIDDEN:
                raise StoreRefused(answer.message, answer.cause)
            case Cause.SCHEMA:
                raise SchemaTooOld(f"{answer.message}; install the CRDs of this version")
            case Cause.ADMISSION | Cause.TOO_LARGE:
                LOG.error("the claim of %s is refused by admission: %s", candidate.key, answer.message)
                if len(self._refused) >= _REFUSED_REMEMBERED_MAX:
                    self._refused.clear()
                self._refused[candidate.uid] = candidate.version
