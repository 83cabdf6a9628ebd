"""The first thing that a worker process of `fencepost run` does: never outlive its parent.

`python -m fencepost.local.child PARENT-PID COMMAND...` asks the kernel for SIGKILL when the parent dies, and
then is `fencepost COMMAND...`. Killed like this a worker loses nothing: what it had done lies in its outbox.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1
ORPHANED: Final = 1


def die_with(parent: int) -> None:
    """End with the parent, also if it is gone already: the signal comes for later deaths only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(ORPHANED)


def main() -> None:
    """Runs the command line in this very process."""
    die_with(int(sys.argv[1]))
    sys.argv = ["fencepost", *sys.argv[2:]]
    runpy.run_module("fencepost.cli.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
