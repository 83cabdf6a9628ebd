"""SQLite as the store: the same protocol on one machine, without a cluster.

`shelf` says what a transaction can look up and keep; `ledger` is the server's judgement of every write, on
any shelf; `joining` is the server's side of jobs; `embedded` puts them behind the port that workers use.
`store` is the shelf in a SQLite file; the store in memory of `fencepost.testing` is another shelf under the
same code. `keeper` does what is due, `run` is `fencepost run`.
"""
