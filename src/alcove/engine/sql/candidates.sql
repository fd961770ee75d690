-- How PostgreSQL finds candidates for a search, by terms and with pgvector: see `engine/postgres/term_index.py` and `pgvector.py`.

-- name: drop_windows
-- Only in the store's own schema: another schema of the search path may contain another store's table of that name.
DROP TABLE IF EXISTS {schema}.windows

-- name: own_schema
SELECT quote_ident(current_schema())

-- name: make_windows
CREATE TABLE windows (
    ns        BYTEA  NOT NULL,
    seq       BIGINT NOT NULL,
    embedding HALFVEC({dimensions}) NOT NULL,
    FOREIGN KEY (ns, seq) REFERENCES terms ON DELETE CASCADE)

-- name: windows_by_text
CREATE INDEX windows_of ON windows (ns, seq)

-- name: needs_hnsw_index
-- Whether there are enough windows for an HNSW index, and no complete one exists.
SELECT count(*) > ?1 AND NOT EXISTS (
    SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(quote_ident(current_schema()) || '.windows_by_meaning') AND indisvalid)
FROM (SELECT 1 FROM windows LIMIT ?1 + 1) few

-- name: try_lock_build
-- One node at a time; the lock is released when its connection ends.
SELECT pg_try_advisory_lock(? + hashtext(current_schema()))

-- name: unlock_build
SELECT pg_advisory_unlock(? + hashtext(current_schema()))

-- name: drop_hnsw_index
-- Drops an index that an interrupted build left behind.
DROP INDEX CONCURRENTLY IF EXISTS {schema}.windows_by_meaning

-- name: create_hnsw_index
CREATE INDEX CONCURRENTLY windows_by_meaning ON windows USING hnsw (embedding halfvec_cosine_ops)

-- name: setting
SELECT current_setting(?)

-- name: raise_setting
-- Raises the memory for building an index to at least this much.
SELECT set_config('maintenance_work_mem', CAST(?1 AS TEXT), FALSE)
WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < pg_size_bytes(CAST(?1 AS TEXT))

-- name: set_config
SELECT set_config(?, ?, FALSE)

-- name: delete_terms
DELETE FROM terms WHERE seq IN ({numbers})

-- name: add_terms
INSERT INTO terms (seq, ns, terms)
SELECT seq, ns, ARRAY(SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?2 AS JSON)))
FROM versions WHERE seq = ?1 AND ended_at IS NULL

-- name: add_window
INSERT INTO windows (seq, ns, embedding)
SELECT seq, ns, CAST(CAST(?2 AS TEXT) AS HALFVEC) FROM terms WHERE seq = ?1

-- name: sample
-- About ?3 texts of a subtree in evenly spread runs of eight, each with its run, and the count of all texts.
SELECT seq, place / 8, every FROM (
    SELECT seq, row_number() OVER (ORDER BY ns, seq) AS place, count(*) OVER () AS every
    FROM terms WHERE ns >= ?1 AND ns < ?2) inside
WHERE place / 8 % greatest(every / CAST(?3 AS BIGINT), 1) = 0

-- name: neighbours
-- For each of some texts, up to ?2 texts that were written before and after it in its namespace.
SELECT t.seq, n.seq FROM terms t CROSS JOIN LATERAL (
    (SELECT b.seq FROM terms b WHERE b.ns = t.ns AND b.seq < t.seq ORDER BY b.seq DESC LIMIT ?2) UNION ALL
    (SELECT a.seq FROM terms a WHERE a.ns = t.ns AND a.seq > t.seq ORDER BY a.seq LIMIT ?2)) n
WHERE t.seq IN (SELECT CAST(value AS BIGINT) FROM json_array_elements_text(CAST(?1 AS JSON)))

-- name: set_scan_options
-- Makes scans of the HNSW index continue until enough visible rows are found. In a large index they visit more
-- candidates, since few links lead from one subject to another. Without these settings, the planner assumes that a
-- policy's filter hardly lets anything pass, and reads everything.
SELECT set_config('hnsw.iterative_scan', 'relaxed_order', TRUE),
       set_config('hnsw.ef_search', CAST(CAST(greatest(?, least(400, reltuples / 2500)) AS BIGINT) AS TEXT), TRUE),
       set_config('enable_sort', CAST(? AS TEXT), TRUE), set_config('enable_hashjoin', 'off', TRUE),
       set_config('enable_mergejoin', 'off', TRUE), set_config('jit', 'off', TRUE),
       set_config('plan_cache_mode', CAST(? AS TEXT), TRUE)
FROM pg_class WHERE oid = CAST('terms' AS REGCLASS)

-- name: nearest
-- The texts of the nearest windows, each once with the count of its windows among them.
WITH asked AS MATERIALIZED (SELECT CAST(CAST(?4 AS TEXT) AS HALFVEC) AS vector)
SELECT t.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body, t.windows FROM (
    SELECT seq, count(*) AS windows FROM (
        SELECT w.seq FROM windows w JOIN versions v ON v.seq = w.seq
        WHERE w.ns >= ?1 AND w.ns < ?2 AND v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {condition}
        ORDER BY w.embedding <=> (SELECT vector FROM asked) LIMIT ?) n GROUP BY seq) t
JOIN versions v ON v.seq = t.seq LEFT JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?

-- name: nearest_of_few
-- The same without the HNSW index, for a scope that is a small part of it; full rows are read only until the limit.
WITH inside AS MATERIALIZED (
    SELECT seq, embedding <=> CAST(CAST(?4 AS TEXT) AS HALFVEC) AS distance FROM windows WHERE ns >= ?1 AND ns < ?2)
SELECT t.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body, t.windows FROM (
    SELECT seq, count(*) AS windows FROM (
        SELECT t.seq FROM (SELECT seq, distance FROM inside ORDER BY distance OFFSET 0) t JOIN versions v ON v.seq = t.seq
        WHERE v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {condition}
        ORDER BY t.distance LIMIT ?) n GROUP BY seq) t
JOIN versions v ON v.seq = t.seq LEFT JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?

-- name: texts_with_terms
-- Texts that contain one of some terms, up to ?5 for each term, greatest total weight first. Full rows are read only until
-- the limit: a policy's filter costs more than ranking.
WITH held AS MATERIALIZED (
    SELECT DISTINCT seq, {weight} AS weight FROM json_array_elements_text(CAST(?4 AS JSON)) asked (term)
    CROSS JOIN LATERAL (SELECT seq, terms FROM terms
        WHERE terms @> ARRAY[CAST(term AS BIGINT)] AND ns >= ?1 AND ns < ?2 LIMIT ?5) t)
SELECT t.seq, v.ns, coalesce(v.original_at, v.created_at), v.expires_at, v.index_text, x.body FROM (
    SELECT v.seq FROM (SELECT seq, weight FROM held ORDER BY weight DESC, seq DESC OFFSET 0) t JOIN versions v ON v.seq = t.seq
    WHERE v.ended_at IS NULL AND (v.expires_at IS NULL OR v.expires_at > ?3) AND {condition}
    ORDER BY t.weight DESC, t.seq DESC LIMIT ?) t
JOIN versions v ON v.seq = t.seq LEFT JOIN vectors x ON x.ns = v.ns AND x.seq = v.seq AND x.embedder = ?
