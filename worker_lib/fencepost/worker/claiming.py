"""Choosing and claiming: which candidates to try, in which order, and when to look again.

A page is taken in the store's order, higher priority first, until another worker gets in the way: workers
list the same page, so from then on each chooses at random from what is left of it, or they would meet at
every claim. A page is used up before the next list, or until others have won too many claims of it. The claim
itself compares everything: a candidate is a hint.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from fencepost.ports import Answer, Applied, Cause, Refused, StoreRefused, StoreUnavailable
from fencepost.protocol.fencing import next_token
from fencepost.protocol.mutation import Claim
from fencepost.protocol.task import Candidate
from fencepost.worker.failures import SchemaTooOld
from fencepost.worker.holding import Holding
from fencepost.worker.settings import LOST_CLAIMS_MAX
from fencepost.worker.workplace import LOG, Workplace

_REFUSED_REMEMBERED_MAX: Final = 1024


class Claiming:
    """Claims from the queues in their order: a later one only while the earlier ones have nothing."""

    def __init__(self, place: Workplace, queues: Sequence[str]) -> None:
        self._place = place
        self._queues = queues
        self._refused: dict[str, str] = {}  # UID -> version that admission refused a claim of
        self.found_candidates = False  # in the newest list

    async def claims(self) -> AsyncIterator[tuple[str, Holding, float]]:
        """The claims of one page, one by one: queue, lease, and when the list was asked for.

        Ends when the page is used up or stale, or the worker is told to stop. Raises `StoreUnavailable`,
        `StoreRefused` or `SchemaTooOld`.
        """
        lost = 0
        queue, page, listed = await self._page()
        self.found_candidates = bool(page)
        while page and not self._place.stopping.requested and not self._place.outbox.full:
            holding = await self._claim(page.pop(self._place.random.randrange(len(page)) if lost else 0))
            if holding is not None:
                yield queue, holding, listed
                continue
            lost += 1
            if lost >= LOST_CLAIMS_MAX:
                return

    async def _page(self) -> tuple[str, list[Candidate], float]:
        for queue in self._queues:
            listed = self._place.clock()
            page = [
                c
                for c in await self._place.store.claimable(queue, self._place.settings.page)
                if self._is_new(c)
            ]
            if page:
                return queue, page, listed
        return "", [], 0.0

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
