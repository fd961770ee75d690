-- Checks of `alcove doctor` that compare the candidate index with memories; see checks.sql for the format.

-- name: what is searched by words and meaning belongs to live memories
SELECT count(*) FROM terms;
SELECT seq FROM terms t WHERE NOT EXISTS (
    SELECT 1 FROM versions v WHERE v.seq = t.seq AND v.ns = t.ns AND v.ended_at IS NULL AND v.index_text IS NOT NULL)
