-- Statements that PostgreSQL spells differently; `sqlite.sql` has the same names. Parts are inserted into shared statements.

-- part: log_end
-- The highest sequence number of a version, deleted ones included.
(SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM versions_seq_seq)

-- part: numbers
-- The numbers of a JSON array.
SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(? AS JSON))

-- part: age
-- The age of a transaction, for comparison with `relfrozenxid`.
age(CAST(CAST(CAST(?1 AS TEXT) AS xid8) AS xid))

-- name: append
INSERT INTO versions (seq, id, ns, key, kind, revision, created_at, expires_at, "user", client, agent, data_key, sealed,
                      attributes, index_text, original_at, ttl, added_at, owner, ended_at)
VALUES (coalesce(?, nextval('versions_seq_seq')), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING seq

-- name: begin_with_numbers
-- The columns of `begin`, and the last of ? new numbers for versions: only writers take numbers.
SELECT value, (SELECT created_at FROM versions ORDER BY seq DESC LIMIT 1),
       (SELECT max(nextval('versions_seq_seq')) FROM generate_series(1, ?)) FROM marks WHERE name = 'documents'

-- name: put
-- See `alcove_put` in the schema.
SELECT alcove_put(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_audit
INSERT INTO audit (at, actor, action, subject, details) VALUES (?, ?, ?, ?, ?) RETURNING seq

-- name: add_document
INSERT INTO documents (kind, at, actor, body) VALUES (?, ?, ?, ?) RETURNING version

-- name: stats
SELECT substring(ns FROM 1 FOR position('\x00'::bytea IN ns)),
       count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)), count(*),
       coalesce(sum(length(sealed)), 0)
FROM versions GROUP BY 1 ORDER BY 1

-- part: personal_versions
older AS MATERIALIZED (
    SELECT n.ns FROM json_array_elements(CAST(:older AS JSON)) r JOIN namespaces n
        ON n.ns >= decode(r.value ->> 0, 'hex') AND n.ns < decode(r.value ->> 1, 'hex')
    WHERE n.owner IS NULL),
personal (seq, own) AS (
    SELECT seq, TRUE FROM versions WHERE ns IN (SELECT ns FROM namespaces WHERE owner = :user)
    UNION ALL
    SELECT seq, ns IN (SELECT ns FROM older) FROM versions WHERE "user" = :user AND "user" IS DISTINCT FROM owner
    UNION ALL
    SELECT seq, ns IN (SELECT ns FROM older) FROM versions WHERE formerly = :pseudonym
    UNION ALL
    SELECT seq, TRUE FROM versions
    WHERE :authorless AND ns IN (SELECT ns FROM older) AND "user" IS NULL AND formerly IS NULL)

-- name: skip_numbers
SELECT setval('versions_seq_seq', greatest({log_end}, ?) + ?)

-- name: advance_queue
UPDATE marks SET value = greatest(value, coalesce((
    SELECT turn FROM to_index WHERE due >= 0 AND error IS NULL ORDER BY turn LIMIT 1), 0))
WHERE name = 'turn'

-- name: next_in_queue
-- Skips texts that another node is claiming. Stored texts escape NUL as JSON spells it (`postgres/text_escaping.py`); inside
-- the JSON array it gets its original spelling.
SELECT CAST(coalesce(json_agg(json_build_array(
    seq, replace(index_text, U&'\F8F02', '\u0000'), tries + 1, at_field, at_window) ORDER BY turn, seq), '[]') AS TEXT)
FROM (
    SELECT *, sum(size) OVER (ORDER BY turn, seq) AS total FROM (
        SELECT * FROM to_index WHERE due BETWEEN 0 AND ?1 ORDER BY turn, seq LIMIT ?2
        FOR UPDATE SKIP LOCKED) line) first
JOIN versions USING (seq) WHERE total <= ?3 OR total = size

-- name: renew
-- It does not wait for rows, so that no deadlock with a process that locks them in another order is possible.
UPDATE to_index SET due = ?1 WHERE seq IN (SELECT seq FROM to_index WHERE due = ?2 AND seq IN (
    SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?3 AS JSON))) FOR UPDATE SKIP LOCKED)

-- name: still_queued
SELECT CAST(coalesce(json_agg(seq), '[]') AS TEXT) FROM json_array_elements(CAST(? AS JSON)) asked JOIN to_index
ON seq = CAST(asked.value ->> 0 AS BIGINT) AND at_field = CAST(asked.value ->> 1 AS BIGINT)
AND at_window = CAST(asked.value ->> 2 AS BIGINT)

-- name: add_piece
INSERT INTO pieces (ns, seq, body) SELECT ns, seq, ?2 FROM versions WHERE seq = ?1

-- name: park
INSERT INTO to_index (ns, seq, due, error, writer, size)
SELECT ns, seq, NULL, ?2, "user", octet_length(index_text) FROM versions WHERE seq = ?1 AND ended_at IS NULL

-- name: add_vectors
INSERT INTO vectors (ns, seq, embedder, body)
SELECT ns, seq, ?1, substring(?2 FROM CAST(asked.value ->> 1 AS INTEGER) FOR CAST(asked.value ->> 2 AS INTEGER))
FROM json_array_elements(CAST(?3 AS JSON)) asked JOIN versions ON seq = CAST(asked.value ->> 0 AS BIGINT)
WHERE ended_at IS NULL
ON CONFLICT (ns, seq, embedder) DO UPDATE SET id = DEFAULT, body = excluded.body

-- name: state
-- Committed rows only: a number that was only assigned belongs to a write that others do not see yet.
SELECT coalesce((SELECT max(seq) FROM versions), 0), coalesce((SELECT max(id) FROM vectors), 0),
       coalesce((SELECT max(id) FROM touches), 0), (SELECT CAST(sum(value) AS BIGINT) FROM marks WHERE name IN ('wipes', 'clears')),
       (SELECT embedder FROM serving)

-- name: visible_rows
SELECT {columns} FROM json_array_elements_text(CAST(?1 AS JSON)) WITH ORDINALITY asked (number, place)
JOIN versions v ON v.seq = CAST(number AS BIGINT)
WHERE v.ns >= ?2 AND v.ns < ?3 AND (v.ended_at IS NULL OR v.ended_at > ?4)
  AND (v.expires_at IS NULL OR v.expires_at > ?5) AND {condition}
ORDER BY place

-- name: figures
SELECT (SELECT count(*) FROM versions WHERE ended_at IS NULL), (SELECT count(*) FROM versions), {log_end},
       (SELECT value FROM marks WHERE name = 'wipes'), (SELECT value FROM marks WHERE name = 'scrubbed')

-- name: table_counter
SELECT greatest((SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {table}_{key}_seq),
                (SELECT max({key}) FROM {table}))

-- name: set_table_counter
SELECT setval('{table}_{key}_seq', greatest(?1, 1), ?1 > 0)
