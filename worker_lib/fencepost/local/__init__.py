"""SQLite as the store: the same protocol on one machine, without a cluster."""
