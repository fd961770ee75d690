-- Statements for operating a store.

-- name: update_audit
UPDATE audit SET details = ? WHERE seq = ?

-- name: audit
-- A page of the audit log, newest first; of one user, by their name or their pseudonym.
SELECT seq, at, actor, action, subject, details FROM audit
WHERE seq < ?1 AND (action = ?2 OR ?2 IS NULL) AND (actor IN (?3, ?4) OR ?3 IS NULL OR subject = ?4)
ORDER BY seq DESC LIMIT ?5

-- name: purge_audit
DELETE FROM audit WHERE at < ? AND seq NOT IN ({numbers})

-- name: audit_before
SELECT seq, at, actor, action, subject, details FROM audit WHERE at < ? AND action = ?

-- name: document
SELECT version, body FROM documents WHERE kind = ? ORDER BY version DESC LIMIT 1

-- name: private_rooms
SELECT template FROM private_rooms

-- name: add_private_room
INSERT INTO private_rooms (template) VALUES (?) ON CONFLICT DO NOTHING

-- name: keys_by_wrapper
SELECT wrapped_by, count(*) FROM data_keys GROUP BY wrapped_by ORDER BY wrapped_by
