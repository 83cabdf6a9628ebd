"""A thread for one call, which the end of the process does not wait for.

The threads of `asyncio.to_thread` are waited for when the loop closes: a handler that hangs would keep a
worker alive that was told to stop and whose grace is over.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run `call` in a thread of its own, under this context; it must not raise."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T) -> None:
        if not done.done():
            done.set_result(result)

    def body() -> None:
        result = context.run(call)
        try:
            loop.call_soon_threadsafe(settle, result)
        except RuntimeError:  # the loop was closed: nobody waits any more
            return

    threading.Thread(target=body, name="fencepost-handler", daemon=True).start()
    return done
