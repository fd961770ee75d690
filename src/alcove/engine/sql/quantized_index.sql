-- The candidate index of a SQLite file, for searches of large subtrees: see `engine/quantized_index.py`.

-- name: delete_quantized
DELETE FROM terms

-- name: add_quantized
INSERT OR REPLACE INTO terms (ns, seq, terms, rounded) SELECT ns, seq, ?2, ?3 FROM versions WHERE seq = ?1 AND ended_at IS NULL

-- name: quantized_entries
SELECT t.seq, t.terms, t.rounded FROM terms t CROSS JOIN versions v ON v.seq = t.seq
WHERE t.ns >= ?1 AND t.ns < ?2 AND ?3 = 0 AND {condition}

-- name: quantized_entries_after
-- Entries whose vectors were stored after a position.
SELECT t.seq, t.terms, t.rounded FROM vectors x NOT INDEXED CROSS JOIN terms t ON t.ns = x.ns AND t.seq = x.seq
CROSS JOIN versions v ON v.seq = t.seq
WHERE x.ns >= ?1 AND x.ns < ?2 AND x.id > ?3 AND {condition}

-- name: visible_texts
SELECT v.seq FROM (SELECT value AS asked FROM json_each(?1)) CROSS JOIN versions v ON v.seq = asked
WHERE v.ns >= ?2 AND v.ns < ?3 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?4) AND {condition}

-- name: neighbours
-- For each of some texts, up to ?2 texts that were written before and after it in its namespace.
SELECT c.seq, n.seq FROM versions c NOT INDEXED CROSS JOIN terms n ON n.ns = c.ns AND n.seq IN (
    SELECT seq FROM terms WHERE ns = c.ns AND seq < c.seq ORDER BY seq DESC LIMIT ?2)
WHERE c.seq IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT c.seq, n.seq FROM versions c NOT INDEXED CROSS JOIN terms n ON n.ns = c.ns AND n.seq IN (
    SELECT seq FROM terms WHERE ns = c.ns AND seq > c.seq ORDER BY seq LIMIT ?2)
WHERE c.seq IN (SELECT value FROM json_each(?1))
