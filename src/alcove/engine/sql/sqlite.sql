-- Statements that SQLite spells differently; `postgres.sql` has the same names. Parts are inserted into shared statements.

-- part: log_end
-- The highest sequence number of a version, deleted ones included.
(SELECT seq FROM sqlite_sequence WHERE name = 'versions')

-- part: numbers
-- The numbers of a JSON array.
SELECT value FROM json_each(?)

-- name: append
-- In the order of rows.Row; SQLite assigns `seq` if it is NULL.
INSERT INTO versions (seq, id, ns, key, kind, revision, created_at, expires_at, "user", client, agent, data_key, sealed,
                      attributes, index_text, original_at, ttl, added_at, owner, ended_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_audit
INSERT INTO audit (at, actor, action, subject, details) VALUES (?, ?, ?, ?, ?)

-- name: add_document
INSERT INTO documents (kind, at, actor, body) VALUES (?, ?, ?, ?)

-- name: stats
-- Memories, versions and bytes of each root segment.
SELECT substr(ns, 1, instr(ns, x'00')),
       count(*) FILTER (WHERE ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?1)), count(*),
       coalesce(sum(length(sealed)), 0)
FROM versions GROUP BY 1 ORDER BY 1

-- part: personal_versions
-- A WITH clause: the versions of a person. `own` are those in their rooms, and those that they wrote into older rooms,
-- which have no owner and show each author only their own versions. The others are what they wrote into rooms of
-- others, under their name or, after it was removed, under their pseudonym.
older AS MATERIALIZED (
    SELECT n.ns FROM json_each(:older) r JOIN namespaces n
        ON n.ns >= unhex(r.value ->> 0) AND n.ns < unhex(r.value ->> 1)
    WHERE n.owner IS NULL),
personal (seq, own) AS (
    SELECT seq, TRUE FROM versions WHERE ns IN (SELECT ns FROM namespaces WHERE owner = :user)
    UNION ALL
    SELECT seq, ns IN (SELECT ns FROM older) FROM versions INDEXED BY authored WHERE "user" = :user AND "user" IS DISTINCT FROM owner
    UNION ALL
    SELECT seq, ns IN (SELECT ns FROM older) FROM versions INDEXED BY anonymised WHERE formerly = :pseudonym
    UNION ALL
    SELECT seq, TRUE FROM versions WHERE :authorless AND ns IN (SELECT ns FROM older) AND "user" IS NULL AND formerly IS NULL)

-- name: skip_numbers
UPDATE sqlite_sequence SET seq = max(seq, ?) + ? WHERE name = 'versions'

-- name: advance_queue
-- Records how far the queue has advanced. A failed text retains its turn, and does not hold the queue up.
UPDATE marks SET value = max(value, coalesce((
    SELECT turn FROM to_index INDEXED BY to_index_by_turn
    WHERE due IS NOT NULL AND error IS NULL ORDER BY turn LIMIT 1), 0))
WHERE name = 'turn'

-- name: next_in_queue
-- The next texts of the queue, as one JSON array: at most ?2, and at most ?3 bytes unless the first one is larger.
SELECT json_group_array(json_array(seq, index_text, tries + 1, at_field, at_window)) FROM (
    SELECT seq, size, tries, at_field, at_window, sum(size) OVER (ORDER BY turn, seq) AS total FROM (
        SELECT * FROM to_index INDEXED BY to_index_by_turn
        WHERE due IS NOT NULL AND due <= ?1 ORDER BY turn, seq LIMIT ?2) line) first
JOIN versions USING (seq) WHERE total <= ?3 OR total = size

-- name: renew
-- The moment until which texts are claimed identifies who claimed them.
UPDATE to_index SET due = ? WHERE due = ? AND seq IN ({numbers})

-- name: still_queued
-- Those of some texts, each with the place of its piece, that are still queued at that place; a JSON array.
SELECT json_group_array(seq) FROM json_each(?) CROSS JOIN to_index
ON seq = value ->> 0 AND at_field = value ->> 1 AND at_window = value ->> 2

-- name: add_piece
INSERT INTO pieces (seq, body) VALUES (?, ?)

-- name: park
INSERT INTO to_index (seq, due, error, writer, size)
SELECT seq, NULL, ?2, "user", octet_length(index_text) FROM versions WHERE seq = ?1 AND ended_at IS NULL

-- name: add_vectors
-- Parameters: the embedder, all vectors in one text of bytes, and for each version the start and length of its part.
-- Adds vectors of live versions only: a version may have ended while its text was embedded.
INSERT OR REPLACE INTO vectors (ns, seq, embedder, body)
SELECT ns, seq, ?1, substr(?2, value ->> 1, value ->> 2)
FROM json_each(?3) CROSS JOIN versions ON seq = value ->> 0 WHERE ended_at IS NULL

-- name: state
-- The highest numbers of the log, the vectors and the changes of expiry, and the count of erasures.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'versions'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'vectors'), 0),
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'touches'), 0),
       (SELECT sum(value) FROM marks WHERE name IN ('wipes', 'clears')),
       (SELECT embedder FROM serving)

-- name: visible_rows
-- Those of some versions that a scope still shows, in the given order.
SELECT {columns} FROM (SELECT value AS asked FROM json_each(?1)) CROSS JOIN versions v ON v.seq = asked
WHERE v.ns >= ?2 AND v.ns < ?3 AND (v.ended_at IS NULL OR v.ended_at > ?4)
  AND (v.expires_at IS NULL OR v.expires_at > ?5) AND {condition}

-- name: figures
SELECT (SELECT count(*) FROM versions WHERE ended_at IS NULL),
       (SELECT count(*) FROM versions),
       (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'versions'),
       (SELECT value FROM marks WHERE name = 'wipes'),
       (SELECT value FROM marks WHERE name = 'scrubbed')

-- Counters of tables, for a copy in another database; `table_copy.py` has the parts.

-- name: table_counter
-- The highest number that a row of the table ever had.
SELECT max(coalesce((SELECT max(seq) FROM sqlite_sequence WHERE name = '{table}'), 0),
           coalesce((SELECT max({key}) FROM {table}), 0))

-- name: set_table_counter
DELETE FROM sqlite_sequence WHERE name = '{table}';
INSERT INTO sqlite_sequence (name, seq) VALUES ('{table}', ?)
