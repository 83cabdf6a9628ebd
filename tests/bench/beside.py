"""The value that the product is compared with: the same two patches, sent by a client that does nothing else.

Bodies, content types and paths are the product's own (`kube.patches`); all of them are made before the clock
starts, and of an answer nothing is looked at but its status. So this is what the API server, the policies
and the operator leave room for at this concurrency; nothing that decides anything can be as fast.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from fencepost.kube.patches import Patch, patch_of
from fencepost.kube.store import object_path
from fencepost.protocol.mutation import Claim, Mutation, apply
from fencepost.protocol.payload import sha256_hex, value_text
from fencepost.protocol.receipt import default_idempotency_key
from fencepost.protocol.submission import Submission, judge
from fencepost.protocol.task import Kind, Outcome, Task
from fencepost.worker.clock import time_of_day
from fencepost.worker.handing_in import submit_of

RESOURCE = "leasedtasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One PATCH, ready to be sent."""

    path: str
    body: bytes
    content_type: str


def both_patches(task: Task, *, account: str, outbox: str) -> tuple[Request, Request]:
    """The claim of a task and the submit of its result, as a worker would send them."""
    now = time_of_day()
    claim = Claim(
        key=task.key,
        uid=task.uid,
        version=task.version,
        token=task.token + 1,
        holder=f"{outbox}/0123456789abcdef",
        account=account,
        outbox_mark="0:GENESIS",
        at=now,
    )
    held = apply(task, claim)
    n = json.loads(task.spec.request)["n"]
    value = value_text({"n": n, "rows": 17 * n})
    key = default_idempotency_key(
        outbox=outbox,
        uid=task.uid,
        kind=Kind.RESULT,
        outcome=Outcome.OK,
        payload_sha256=sha256_hex(value),
        token=held.token,
    )
    submission = Submission(
        uid=task.uid,
        idempotency_key=key,
        kind=Kind.RESULT,
        outcome=Outcome.OK,
        value=value,
        recorded_by=account,
        token=held.token,
        holder=held.holder,
        device_time=now,
    )
    receipt = judge(held, submission).receipt
    if receipt is None:
        raise RuntimeError(f"the core does not accept the result of {task.key}")
    return _request(claim, now), _request(submit_of(held, receipt), now)


def _request(mutation: Mutation, now: str) -> Request:
    patch: Patch = patch_of(mutation, now=now)
    return Request(
        path=object_path(RESOURCE, mutation.key) + patch.part.value,
        body=json.dumps(patch.body, ensure_ascii=False, separators=(",", ":")).encode(),
        content_type=patch.content_type,
    )


async def send_all(
    tasks: Sequence[Task], *, server: str, authorities: str, token: str, account: str, connections: int
) -> None:
    """Claim and submit each task, by so many connections, each one request at a time. Raises on a refusal."""
    outboxes = [str(uuid.uuid4()) for _ in range(connections)]
    pairs = iter(
        [
            both_patches(task, account=account, outbox=outboxes[n % connections])
            for n, task in enumerate(tasks)
        ]
    )
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authorities), limit=connections)
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "fencepost-beside"}
    async with aiohttp.ClientSession(server, connector=connector, headers=headers) as session:
        await asyncio.gather(*(_send(session, pairs) for _ in range(connections)))


async def _send(session: aiohttp.ClientSession, pairs: Iterator[tuple[Request, Request]]) -> None:
    for pair in pairs:
        for request in pair:
            headers = {"Content-Type": request.content_type}
            async with session.patch(request.path, data=request.body, headers=headers) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(f"the bare {request.path} was refused: {answer[:500]!r}")
