"""`fencepost audit`: is what the outbox says what the server has?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fencepost.cli import exit_codes
from fencepost.cli.outbox_commands import outbox_option, outbox_to_look
from fencepost.cli.output import output_option, print_json, print_table
from fencepost.cli.target import run_async, target_of, target_options
from fencepost.outbox.audit import AuditReport, audit_report
from fencepost.protocol.task import Task


@click.command()
@outbox_option
@output_option
@target_options
@click.pass_context
def audit(ctx: click.Context, outbox_file: Path | None, output: str) -> int:
    """Verify the outbox's own chain, and compare its receipts with those on the server. Changes nothing.

    \b
    Example:
      fencepost audit --outbox /data/outbox.db -n shelter

    A fault is a receipt that the server no longer has, a claim that this file does not know (it was lost or
    rolled back), a row that was changed. Exit codes: 0 no fault, 1 a fault, 2 wrong input, 62 the store does
    not answer, 64 no access, 71 a worker has the outbox open, 72 to 76 the outbox was refused.
    """
    target = target_of(ctx)
    with outbox_to_look(outbox_file) as seen:

        async def tasks() -> Sequence[Task]:
            async with target.opened(must_exist=True) as store:
                return await store.claimed_by_outbox(seen.uuid)

        report = audit_report(seen, run_async(tasks()))
    if output == "json":
        print_json(_view(report))
    else:
        _print(report)
    return exit_codes.OK if report.ok else exit_codes.FAILED


def _print(report: AuditReport) -> None:
    findings = (*report.verification.findings, *report.findings)
    rows = [(f"{f.kind.name}{'' if f.is_fault else ' (notice)'}", f.subject, f.message) for f in findings]
    if rows:
        print_table(("FINDING", "ABOUT", "MESSAGE"), rows, empty="")
    verification = report.verification
    click.echo(
        f"{verification.steps} steps replayed, {verification.rows} rows, "
        f"{verification.acknowledged} acknowledged, {report.compared} compared with the server, "
        f"{report.not_compared} not (their task is gone or was claimed by others since)"
    )
    click.echo("No fault was found." if report.ok else "There are faults.")


def _view(report: AuditReport) -> dict[str, object]:
    return {
        "ok": report.ok,
        "steps": report.verification.steps,
        "rows": report.verification.rows,
        "acknowledged": report.verification.acknowledged,
        "compared": report.compared,
        "notCompared": report.not_compared,
        "head": report.verification.head,
        "findings": [
            {"kind": f.kind.name, "fault": f.is_fault, "about": f.subject, "message": f.message}
            for f in (*report.verification.findings, *report.findings)
        ],
    }
