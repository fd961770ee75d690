-- Figures of a store, for a copy to be compared with; a schema of any version must answer them.

-- name: summary
SELECT (SELECT count(*) FROM versions WHERE ended_at IS NULL),
       (SELECT count(*) FROM versions),
       (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'versions'),
       (SELECT value FROM marks WHERE name = 'wipes'),
       (SELECT value FROM marks WHERE name = 'scrubbed')
