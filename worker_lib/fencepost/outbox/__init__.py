"""The durable outbox of a worker: one SQLite file."""
