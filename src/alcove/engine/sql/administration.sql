-- What operating a store asks of it. `{columns}` are those of base.Row.

-- name: add_audit
INSERT INTO audit (at, actor, action, subject, details) VALUES (?, ?, ?, ?, ?)

-- name: audit
-- A page of the audit log, newest first.
SELECT seq, at, actor, action, subject, details FROM audit
WHERE seq < ?1 AND (?2 IS NULL OR action = ?2) AND (?3 IS NULL OR actor = ?3 OR subject = ?4)
ORDER BY seq DESC LIMIT ?5

-- name: purge_audit
DELETE FROM audit WHERE at < ?

-- name: document
SELECT version, at, actor, body FROM documents WHERE kind = ? ORDER BY version DESC LIMIT 1

-- name: add_document
INSERT INTO documents (kind, at, actor, body) VALUES (?, ?, ?, ?)

-- name: held
-- What lies in the namespaces a user owns, one row a namespace.
SELECT ns, count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)), count(*),
       coalesce(sum(length(sealed)), 0), min(coalesce(original_at, created_at)), max(coalesce(original_at, created_at))
FROM versions WHERE ns IN (SELECT ns FROM namespaces WHERE owner = ?1)
GROUP BY ns ORDER BY ns

-- name: authored_elsewhere
SELECT count(*) FROM versions INDEXED BY authored WHERE user = ? AND user IS NOT owner

-- name: of_user
-- What is live in a user's own namespaces, or was written by them into others', in order of the log.
SELECT {columns} FROM versions v
WHERE seq > ?2 AND (expires_at IS NULL OR expires_at > ?3) AND seq IN (
    SELECT seq FROM versions INDEXED BY live
    WHERE ended_at IS NULL AND ns IN (SELECT ns FROM namespaces WHERE owner = ?1)
    UNION ALL
    SELECT seq FROM versions INDEXED BY authored WHERE user = ?1 AND user IS NOT owner AND ended_at IS NULL)
ORDER BY seq LIMIT ?4

-- name: remove_content
DELETE FROM versions WHERE ns = ? AND key = ? AND sealed IS NOT NULL

-- name: stats
-- Memories, versions and bytes of each root segment.
SELECT substr(ns, 1, instr(ns, x'00')),
       count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)), count(*),
       coalesce(sum(length(sealed)), 0)
FROM versions GROUP BY 1 ORDER BY 1

-- name: keys_by_wrapper
SELECT wrapped_by, count(*) FROM data_keys GROUP BY wrapped_by ORDER BY wrapped_by
