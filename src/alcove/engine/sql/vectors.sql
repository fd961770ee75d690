-- Checks of `alcove doctor` that compare vectors with memories; see checks.sql for the format.

-- name: vectors belong to live memories
SELECT count(*) FROM vectors;
SELECT seq FROM vectors x WHERE NOT EXISTS (
    SELECT 1 FROM versions v WHERE v.seq = x.seq AND v.ns = x.ns AND v.ended_at IS NULL AND v.index_text IS NOT NULL)

-- name: every live text has its vectors, or waits for them
SELECT count(*) FROM versions WHERE ended_at IS NULL AND index_text IS NOT NULL;
SELECT seq FROM versions v WHERE ended_at IS NULL AND index_text IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM to_index t WHERE t.seq = v.seq)
  AND NOT EXISTS (SELECT 1 FROM vectors x JOIN serving USING (embedder) WHERE x.ns = v.ns AND x.seq = v.seq)
