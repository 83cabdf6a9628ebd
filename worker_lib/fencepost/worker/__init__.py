"""The worker: drain, claim, execute, record, submit."""
