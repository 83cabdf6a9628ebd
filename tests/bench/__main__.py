"""`make bench`, or `python -m tests.bench [NAME ...] [--quick]`: measures, prints a table, writes a file.

The file is `build/bench.json`: a list of {name, value, unit, target, ok}, where target and ok are null for
what is only there to compare with. A missed target is told and is no failure: this is no test.

To see where a worker's time goes: `python -m tests.bench throughput --profile build/worker.pstats`, which
profiles the rounds of eight workers in one process; then `python -m pstats build/worker.pstats`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench import embedded, joining, memory, starting, throughput
from tests.bench.measured import Measured, print_table, say, write_json
from tests.bench.stage import Stage, stage

OUTPUT = Path("build") / "bench.json"

# The join comes first: an operator that starts beside thousands of tasks of other measurements works through
# Kopf's first list of them for some seconds, and hears of events late until then (seen: 5.6 s at p99).
ON_THE_API_SERVER: dict[str, Callable[..., list[Measured]]] = {
    "join": joining.measure,
    "throughput": throughput.measure,
    "memory": memory.measure,
    "start": starting.measure,
}
EMBEDDED = "embedded"


def main() -> None:
    """Measures what was named, or everything."""
    names = [*ON_THE_API_SERVER, EMBEDDED]
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--profile", type=Path, help="where the profile of eight workers goes")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    throughput.PROFILE = chosen.profile
    measured = measure(chosen.names or names, quick=chosen.quick)
    print_table(measured)
    write_json(measured, OUTPUT)
    print(f"written to {OUTPUT}")


def measure(names: list[str], *, quick: bool) -> list[Measured]:
    """All lines of the table."""
    say(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start")
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="fencepost-bench-") as scratch:
        if set(names) & set(ON_THE_API_SERVER):
            with stage(Path(scratch)) as place:
                measured += on_the_api_server(place, names, quick=quick)
        if EMBEDDED in names:
            measured += embedded.measure(quick=quick)
    say(f"load {os.getloadavg()[0]:.1f} at the end")
    return measured


def on_the_api_server(place: Stage, names: list[str], *, quick: bool) -> list[Measured]:
    """Everything that needs one."""
    measured: list[Measured] = []
    for name, of_it in ON_THE_API_SERVER.items():
        if name in names:
            say(f"{name}: begins")
            measured += of_it(place, quick=quick)
    return measured


if __name__ == "__main__":
    main()
