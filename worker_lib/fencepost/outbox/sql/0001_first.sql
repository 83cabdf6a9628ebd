-- Version 1. Every name starts with fencepost_: a handler's own tables live in the same file.

-- Who this outbox is; one row. base_* is the newest step that was pruned, where a replay starts.
CREATE TABLE fencepost_outbox (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  uuid TEXT NOT NULL,
  owner TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  created_at TEXT NOT NULL,
  closed_cleanly INTEGER NOT NULL,
  base_sequence INTEGER NOT NULL,
  base_hash TEXT NOT NULL,
  pruned_before TEXT NOT NULL
);

-- The append-only chain (I4). `at` is for people and for the age of a prune; no hash covers it.
CREATE TABLE fencepost_steps (
  sequence INTEGER PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('lease', 'row', 'submit', 'recover')),
  state TEXT NOT NULL,
  hash TEXT NOT NULL,
  at TEXT NOT NULL
);

-- The local mark of a task: leased, and done once its result is a row (in the same transaction).
CREATE TABLE fencepost_tasks (
  uid TEXT PRIMARY KEY,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  token INTEGER NOT NULL,
  holder TEXT NOT NULL,
  leased_at TEXT NOT NULL,
  done_row INTEGER
) WITHOUT ROWID;

-- Results and emitted rows. `row_step` is the step that stored it, `covered_step` the one that accounted for
-- it (submit, or recover after a crash). A receipt is kept as it was answered.
CREATE TABLE fencepost_rows (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  uid TEXT NOT NULL,
  token INTEGER NOT NULL,
  holder TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('Result', 'Row')),
  outcome TEXT NOT NULL CHECK (outcome IN ('Ok', 'Rejected', 'Unknown')),
  value TEXT NOT NULL,
  payload_sha256 TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  job_kind TEXT,
  job_name TEXT,
  job_uid TEXT,
  branch TEXT,
  device_time TEXT NOT NULL,
  stored_at TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  row_step INTEGER NOT NULL,
  covered_step INTEGER,
  status TEXT NOT NULL CHECK (status IN ('pending', 'acknowledged', 'parked', 'dead')),
  reason TEXT NOT NULL,
  tries INTEGER NOT NULL,
  last_error TEXT NOT NULL,
  verdict TEXT,
  receipt TEXT NOT NULL,
  receipt_sha256 TEXT NOT NULL,
  acknowledged_at TEXT NOT NULL
);

-- One key, one row (IDEM-01); one result a task, where each Unknown is a statement about one attempt.
CREATE UNIQUE INDEX fencepost_rows_key ON fencepost_rows (uid, idempotency_key);
CREATE UNIQUE INDEX fencepost_rows_result ON fencepost_rows (uid) WHERE kind = 'Result' AND outcome <> 'Unknown';
CREATE UNIQUE INDEX fencepost_rows_attempt ON fencepost_rows (uid, token)
  WHERE kind = 'Result' AND outcome = 'Unknown';

-- What a drain and a person look for: few rows, so a small index.
CREATE INDEX fencepost_rows_open ON fencepost_rows (id) WHERE status <> 'acknowledged';
