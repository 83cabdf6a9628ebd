"""What was measured, as a value that can be printed and written: medians with their spread, never one shot.

A target is data (`>= 70`), and whether it is met is computed here from the median and nowhere else.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

BEGAN = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the value is to be compared with. `sign` is `>=`, `<=` or `=`."""

    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.sign} {number(self.limit)}"

    def met_by(self, value: float) -> bool:
        """Whether the value is good enough."""
        return {">=": value >= self.limit, "<=": value <= self.limit, "=": value == self.limit}[self.sign]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line of the table. `values` has one number a round; the median is the value.

    No values means that it could not be measured, and `note` says why. No target means that it is there to
    compare with.
    """

    name: str
    unit: str
    values: Sequence[float]
    target: Target | None = None
    note: str = ""

    @property
    def value(self) -> float | None:
        """The median, or None where nothing could be measured."""
        return statistics.median(self.values) if self.values else None

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.value is not None and self.target.met_by(self.value)

    def json(self) -> dict[str, Any]:
        """As `bench.json` has it."""
        value = None if self.value is None else round(self.value, 4)
        target = None if self.target is None else str(self.target)
        return {"name": self.name, "value": value, "unit": self.unit, "target": target, "ok": self.ok}


def number(value: float) -> str:
    """Three significant digits, and no more than are needed."""
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100).__trunc__() - 1)]


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)


def print_table(measured: Sequence[Measured]) -> None:
    """The table, and a sentence about what was missed."""
    table = Table(title="Fencepost, measured", title_justify="left")
    for name, justify in (("what", "left"), ("median", "right"), ("spread", "right"), ("unit", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("target", justify="right")
    table.add_column("", justify="left")
    for line in measured:
        table.add_row(line.name, _median(line), _spread(line), line.unit, str(line.target or ""), _mark(line))
    width = None if sys.stdout.isatty() else 140
    Console(width=width).print(table)
    for line in measured:
        if line.note:
            print(f"  {line.name}: {line.note}")
    missed = [line.name for line in measured if line.ok is False]
    print(f"targets missed: {'; '.join(missed)}" if missed else "all targets met")


def _median(line: Measured) -> str:
    return "not measured" if line.value is None else number(line.value)


def _spread(line: Measured) -> str:
    if len(line.values) < 2:
        return ""
    return f"{number(min(line.values))} to {number(max(line.values))} ({len(line.values)})"


def _mark(line: Measured) -> str:
    return {True: "ok", False: "MISSED", None: ""}[line.ok]


def write_json(measured: Sequence[Measured], file: Path) -> None:
    """Everything that the table has."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([line.json() for line in measured], indent=1) + "\n")
