"""The worker: claim, execute, keep the result, submit. `Worker` is the way in."""
