-- name: create_outbox
-- The one row that says who this is.
INSERT INTO fencepost_outbox
  (id, uuid, owner, incarnation, created_at, closed_cleanly, base_sequence, base_hash, pruned_before)
VALUES (1, :uuid, :owner, :incarnation, :at, 0, 0, 'GENESIS', '');

-- name: identity
SELECT uuid, incarnation, closed_cleanly, base_sequence, base_hash, pruned_before FROM fencepost_outbox WHERE id = 1;

-- name: begin_incarnation
-- A new life of the worker.
UPDATE fencepost_outbox SET owner = :owner, incarnation = :incarnation, closed_cleanly = 0 WHERE id = 1;

-- name: end_incarnation
-- Closed in order: the next start need not check every page.
UPDATE fencepost_outbox SET closed_cleanly = 1 WHERE id = 1;

-- name: newest_step
SELECT sequence, kind, state, hash FROM fencepost_steps ORDER BY sequence DESC LIMIT 1;

-- name: step_at
SELECT sequence, kind, state, hash FROM fencepost_steps WHERE sequence = :sequence;

-- name: steps_after
-- One page of the chain.
SELECT sequence, kind, state, hash, at FROM fencepost_steps WHERE sequence > :sequence ORDER BY sequence LIMIT :page;

-- name: append_step
INSERT INTO fencepost_steps (sequence, kind, state, hash, at) VALUES (:sequence, :kind, :state, :hash, :at);

-- name: record_lease
-- A later claim of the same task replaces the lease; what is done stays done.
INSERT INTO fencepost_tasks (uid, namespace, name, token, holder, leased_at, done_row)
VALUES (:uid, :namespace, :name, :token, :holder, :at, NULL)
ON CONFLICT (uid) DO UPDATE SET token = excluded.token, holder = excluded.holder, leased_at = excluded.leased_at;

-- name: mark_done
INSERT INTO fencepost_tasks (uid, namespace, name, token, holder, leased_at, done_row)
VALUES (:uid, :namespace, :name, :token, :holder, :at, :row)
ON CONFLICT (uid) DO UPDATE SET done_row = excluded.done_row;

-- name: store_row
INSERT INTO fencepost_rows
  (namespace, name, uid, token, holder, kind, outcome, value, payload_sha256, idempotency_key, job_kind, job_name,
   job_uid, branch, device_time, stored_at, incarnation, row_step, covered_step, status, reason, tries, last_error,
   verdict, receipt, receipt_sha256, acknowledged_at)
VALUES
  (:namespace, :name, :uid, :token, :holder, :kind, :outcome, :value, :payload_sha256, :idempotency_key, :job_kind,
   :job_name, :job_uid, :branch, :device_time, :stored_at, :incarnation, :row_step, NULL, 'pending', '', 0, '',
   NULL, '', '', '');

-- name: mark_row
-- Where the row stands now; what was stored never changes.
UPDATE fencepost_rows
SET token = :token, holder = :holder, status = :status, reason = :reason, tries = :tries, last_error = :last_error,
    verdict = :verdict, receipt = :receipt, receipt_sha256 = :receipt_sha256, acknowledged_at = :acknowledged_at
WHERE id = :id;

-- name: cover_row
UPDATE fencepost_rows SET covered_step = :step WHERE id = :id;

-- name: row
SELECT * FROM fencepost_rows WHERE id = :id;

-- name: newest_row
SELECT COALESCE(MAX(id), 0) FROM fencepost_rows;

-- name: rows_of
SELECT * FROM fencepost_rows WHERE uid = :uid ORDER BY id;

-- name: row_of_key
SELECT * FROM fencepost_rows WHERE uid = :uid AND idempotency_key = :idempotency_key;

-- name: rows_after
-- One page of all rows.
SELECT * FROM fencepost_rows WHERE id > :id ORDER BY id LIMIT :page;

-- name: open_rows_after
-- One page of the rows that are not acknowledged.
SELECT * FROM fencepost_rows WHERE id > :id AND status <> 'acknowledged' ORDER BY id LIMIT :page;

-- name: uncovered_rows
-- Rows that stand without the step that accounts for them: what a crash left.
SELECT * FROM fencepost_rows WHERE covered_step IS NULL AND status <> 'acknowledged' ORDER BY id;

-- name: done_without_result
-- Tasks that are marked done although their result is not here.
SELECT uid, namespace, name FROM fencepost_tasks
WHERE done_row IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost_rows WHERE id = done_row AND kind = 'Result');

-- name: results_not_done
-- Results whose task is not marked done.
SELECT * FROM fencepost_rows AS rows
WHERE kind = 'Result'
  AND NOT EXISTS (SELECT 1 FROM fencepost_tasks AS tasks WHERE tasks.uid = rows.uid AND done_row IS NOT NULL);

-- name: prune_acknowledged
-- Not while a row of the same task is open: the receipt of a deleted task is recomputed over all its rows.
DELETE FROM fencepost_rows WHERE status = 'acknowledged' AND acknowledged_at < :before
  AND NOT EXISTS (
    SELECT 1 FROM fencepost_rows AS open_rows
    WHERE open_rows.uid = fencepost_rows.uid AND open_rows.status IN ('pending', 'parked'));

-- name: prune_dead
DELETE FROM fencepost_rows WHERE status = 'dead' AND stored_at < :before;

-- name: prune_tasks
-- Local marks whose result went, and old leases that never came to one.
DELETE FROM fencepost_tasks
WHERE (done_row IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost_rows WHERE id = done_row))
   OR (done_row IS NULL AND leased_at < :before);

-- name: newest_prunable_step
-- The end of the oldest part of the chain that no row here needs.
SELECT sequence, hash FROM fencepost_steps
WHERE sequence < (SELECT COALESCE(MIN(row_step), 9223372036854775807) FROM fencepost_rows)
  AND at < :before
  AND sequence < (SELECT MAX(sequence) FROM fencepost_steps)
ORDER BY sequence DESC LIMIT 1;

-- name: prune_steps
DELETE FROM fencepost_steps WHERE sequence <= :sequence;

-- name: move_base
UPDATE fencepost_outbox SET base_sequence = :sequence, base_hash = :hash WHERE id = 1;

-- name: note_prune
UPDATE fencepost_outbox SET pruned_before = MAX(pruned_before, :before) WHERE id = 1;
