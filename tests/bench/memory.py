"""The operator's memory: at its start, with thousands of tasks made under its eyes, and after a restart."""

from __future__ import annotations

from pathlib import Path

from tests.bench.measured import Measured, Target, say
from tests.bench.stage import Stage
from tests.handlers.operator_process import OperatorProcess

MEBIBYTES_MAX = 150
BRANCHES = 1_000


def measure(stage: Stage, *, quick: bool) -> list[Measured]:
    """An operator for one namespace, so that only these tasks are there."""
    jobs, branches = (1, 100) if quick else (5, BRANCHES)
    namespace = stage.namespace("memory")
    with stage.operator(only=namespace) as operator:
        empty = _resident(operator)
        for job in range(jobs):
            stage.make_job(namespace, f"fan-{job}", branches)
        stage.until_made(namespace, jobs * branches)
        full = _resident(operator)
        peak = _resident(operator, "VmHWM")
    with stage.operator(only=namespace) as operator:
        again = _resident(operator)
        peak_again = _resident(operator, "VmHWM")
    say(f"memory: {empty:.0f}, {full:.0f} (peak {peak:.0f}) MiB")
    say(f"memory after a restart: {again:.0f} (peak {peak_again:.0f}) MiB")
    target = Target(sign="<=", limit=MEBIBYTES_MAX)
    name = f"operator's memory with {jobs * branches:,} tasks"
    return [
        Measured(name="operator's memory at the start", unit="MiB", values=[empty]),
        Measured(name=f"{name}, which it has made", unit="MiB", values=[full], target=target),
        Measured(name=f"{name}, after a restart", unit="MiB", values=[again], target=target),
        Measured(
            name=f"{name}, at the highest",
            unit="MiB",
            values=[max(peak, peak_again)],
            target=target,
            note="resident memory as the kernel counts it, of an operator for the namespace of these tasks",
        ),
    ]


def _resident(operator: OperatorProcess, what: str = "VmRSS") -> float:
    """Mebibytes, as the kernel counts them for the process."""
    lines = Path(f"/proc/{operator.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024
