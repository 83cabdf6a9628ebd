"""What a run says of its jobs and tasks: why a branch failed, and what it waits for."""

from __future__ import annotations

from dataclasses import replace

from fencepost.local import view
from fencepost.local.ledger import Ledger
from fencepost.ports import Applied, NewTask, Refused
from fencepost.protocol.job import Branch, JobSpec
from fencepost.protocol.task import LeaseEnd, ObjectKey, Outcome, RetryPolicy, TaskSpec
from tests.contract.acting import Actor, release_of
from tests.local.conftest import Embedded

SPEC = TaskSpec(queue="feeds", lease_duration_seconds=3600, retry_policy=RetryPolicy(max_failures=0))
JOB = JobSpec(branches=tuple(Branch(name=name, request="{}") for name in "ab"), template=SPEC)
FEED = ObjectKey(namespace="default", name="feed")


async def made(embedded: Embedded, spec: JobSpec = JOB) -> dict[str, ObjectKey]:
    """The keys of the tasks of a new job, by branch."""
    answer = await embedded.store.create_job("feed", spec)
    assert not isinstance(answer, Refused), answer
    return {task.branch or "": task.key for task in await embedded.store.tasks()}


async def asked(embedded: Embedded, *keys: ObjectKey) -> list[str]:
    def question(ledger: Ledger) -> list[str]:
        return view.waits(ledger, keys or [FEED])

    return await embedded.store._run(question)


async def tables(embedded: Embedded) -> list[view.Table]:
    return await embedded.store._run(lambda ledger: view.tables(ledger, [FEED]))


async def test_an_exhausted_branch_shows_the_last_error(embedded: Embedded) -> None:
    keys = await made(embedded)
    worker = await Actor.of(embedded.store)
    held = await worker.claim(keys["a"])
    release = release_of(held, LeaseEnd.ERROR, "ConnectionError: the feed said 503")
    assert isinstance(await embedded.store.write(release), Applied)
    await embedded.store.keep_up()
    [table] = await tables(embedded)
    assert table.rows[0].outcome == Outcome.REJECTED
    assert table.rows[0].value == "FailuresExhausted: ConnectionError: the feed said 503"


async def test_a_job_that_waits_for_a_report_says_which_task_does(embedded: Embedded) -> None:
    keys = await made(embedded)
    worker = await Actor.of(embedded.store)
    await worker.submit(await worker.claim(keys["a"]))
    held = await worker.claim(keys["b"])
    await worker.submit(held, outcome=Outcome.UNKNOWN)
    assert await asked(embedded) == [
        f"job feed (1/2 settled): task {keys['b'].name} (branch b) waits for a report: its outcome is Unknown"
    ]
    [table] = await tables(embedded)
    assert [row.value for row in table.rows] == ["done", "waits for a report: its outcome is Unknown"]


async def test_an_external_task_waits_for_a_report_and_a_suspended_one_for_a_person(
    embedded: Embedded,
) -> None:
    keys = [ObjectKey(namespace="default", name=name) for name in ("outside", "asleep")]
    for key, spec in zip(keys, (replace(SPEC, external=True), replace(SPEC, suspend=True)), strict=True):
        assert isinstance(await embedded.store.create(NewTask(key=key, spec=spec)), Applied)
    assert await asked(embedded, *keys) == [
        "task outside waits for a report from outside",
        "task asleep is suspended, and waits for somebody to resume it",
    ]


async def test_a_suspended_job_says_so_and_many_tasks_are_not_all_named(embedded: Embedded) -> None:
    await made(embedded, replace(JOB, suspend=True))
    assert await asked(embedded) == [
        "job feed (0/2 settled): it is suspended, and waits for somebody to resume it"
    ]


async def test_of_many_tasks_the_first_are_named(embedded: Embedded) -> None:
    branches = tuple(Branch(name=f"b{number}", request="{}") for number in range(9))
    await made(embedded, replace(JOB, branches=branches, template=replace(SPEC, external=True)))
    [sentence] = await asked(embedded)
    assert sentence.count("waits for a report from outside") == view.WAITS_SHOWN_MAX
    assert sentence.endswith("and 4 more")
