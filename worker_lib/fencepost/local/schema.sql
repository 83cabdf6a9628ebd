-- The tables of a store file. `tables.SCHEMA_VERSION` is the version of this text.

-- What changes with every claim is one short row; specs and receipts, which may be long, lie beside it, so
-- that a claim does not write them again.
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    version INTEGER NOT NULL,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    settled INTEGER NOT NULL,
    claimable INTEGER NOT NULL,
    token INTEGER NOT NULL,
    holder TEXT NOT NULL,
    outbox TEXT NOT NULL,
    account TEXT NOT NULL,
    renewals INTEGER NOT NULL,
    hold TEXT,
    failures INTEGER NOT NULL,
    last_lease TEXT NOT NULL,
    outbox_mark TEXT NOT NULL,
    acquired_at TEXT NOT NULL,
    renewed_at TEXT NOT NULL,
    progress TEXT NOT NULL,
    receipts INTEGER NOT NULL,
    owner_kind TEXT,
    owner_name TEXT,
    owner_uid TEXT,
    branch TEXT,
    created_at TEXT NOT NULL,
    created REAL NOT NULL,
    since REAL NOT NULL,
    due REAL,
    UNIQUE (namespace, name)
);
CREATE INDEX tasks_claimable ON tasks (namespace, queue, priority DESC, id) WHERE claimable = 1;
-- Who holds what: as many entries as there are leases, so that the due ones among them are found by a scan.
CREATE INDEX tasks_held ON tasks (outbox) WHERE settled = 0 AND outbox <> '';
-- What is due about tasks that nobody holds; a claim and a submit do not touch it.
CREATE INDEX tasks_due ON tasks (due) WHERE due IS NOT NULL AND outbox = '';
CREATE INDEX tasks_of_owner ON tasks (owner_uid, settled) WHERE owner_uid IS NOT NULL;

CREATE TABLE specs (task INTEGER PRIMARY KEY, spec TEXT NOT NULL);

CREATE TABLE receipts (
    task INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    receipt TEXT NOT NULL,
    PRIMARY KEY (task, sequence)
) WITHOUT ROWID;

CREATE TABLE jobs (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    version INTEGER NOT NULL,
    made INTEGER NOT NULL,
    joined INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    owner_kind TEXT,
    owner_name TEXT,
    owner_uid TEXT,
    created_at TEXT NOT NULL,
    spec TEXT NOT NULL,
    status TEXT NOT NULL,
    UNIQUE (namespace, name)
);

-- The answers to reports: an event id is unique in the whole file.
CREATE TABLE reports (event TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE consumed (job TEXT PRIMARY KEY, digest TEXT NOT NULL) WITHOUT ROWID;

-- The payloads that were accepted in a dedup scope wider than one task.
CREATE TABLE payloads (
    scope TEXT NOT NULL,
    payload_sha256 TEXT NOT NULL,
    receipt_sha256 TEXT NOT NULL,
    PRIMARY KEY (scope, payload_sha256)
) WITHOUT ROWID;

-- The mark that the store's time goes on from (`store_clock`), a second old at most when something was written.
-- `boot` is which start of the machine `boottime` belongs to; `wall` is null before the first reading.
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    latest REAL NOT NULL,
    wall REAL,
    boottime REAL NOT NULL DEFAULT 0,
    boot TEXT NOT NULL DEFAULT ''
);
INSERT INTO clock (one, latest) VALUES (1, 0);
