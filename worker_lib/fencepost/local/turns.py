"""Waiting for a turn at a store file, in a thread that can be left behind.

The wait for the file's lock is one call of the kernel that nothing but the lock ends. So it is made in a
daemon thread, which neither the loop nor the end of the process waits for. Whoever waited long enough takes
the turn back: a turn that has not begun by then never does, so nothing was done and nothing will be.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class TurnNotTaken(Exception):  # noqa: N818 - told by the store in its own words
    """The turn did not come in time, and was taken back."""


class Turn(Generic[T]):
    """One piece of work that waits for its turn."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._guard = threading.Lock()
        self._begun = False
        self._taken_back = False

    def begin(self) -> T:
        """Do the work; called when its turn has come. Raises `TurnNotTaken` if nobody wants it any more."""
        with self._guard:
            if self._taken_back:
                raise TurnNotTaken
            self._begun = True
        return self._work()

    def take_back(self) -> bool:
        """Let it never begin; False if it has begun."""
        with self._guard:
            self._taken_back = not self._begun
        return self._taken_back


async def in_turn(turn: Turn[T], wait_and_begin: Callable[[Turn[T]], T], *, seconds: float) -> T:
    """What the turn's work answers, once `wait_and_begin` came to it in a thread.

    Raises `TurnNotTaken` if it has not begun after `seconds`; one that has begun is waited for. A caller that
    is cancelled takes its turn back.
    """
    answer = _in_thread(wait_and_begin, turn)
    try:
        await asyncio.wait([answer], timeout=seconds)
        if not answer.done() and turn.take_back():
            raise TurnNotTaken
        return await answer
    except asyncio.CancelledError:
        turn.take_back()
        raise


def _in_thread(wait_and_begin: Callable[[Turn[T]], T], turn: Turn[T]) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, failure: BaseException | None) -> None:
        if answer.done():
            return
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # a result where there is no failure

    def work() -> None:
        result, failure = None, None
        try:
            result = wait_and_begin(turn)
        except BaseException as error:
            failure = error
        if isinstance(failure, TurnNotTaken):
            return  # who waited knows it by now
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=work, name="fencepost-store", daemon=True).start()
    return answer
