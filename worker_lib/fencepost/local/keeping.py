"""What one pass of the server's side does in an embedded store, in one transaction."""

from __future__ import annotations

from typing import Final

from fencepost.local import joining
from fencepost.local.ledger import Ledger

DUE_AT_ONCE_MAX: Final = 256  # tasks that one transaction does what is due about


def keep(ledger: Ledger, *, batch_due: bool) -> int:
    """Do what is due now; with `batch_due` the records of running jobs too. How many tasks were due."""
    done = ledger.keep_up(DUE_AT_ONCE_MAX)
    if batch_due:
        for key in ledger.shelf.unfinished_jobs():
            joining.reconcile(ledger, key, batch_due=True)
    return done
