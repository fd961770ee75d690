-- What `alcove doctor` points out though nothing is broken; two statements each, as in checks.sql.

-- name: every data key seals something
SELECT count(*) FROM data_keys WHERE subject <> 'store';
SELECT subject FROM data_keys
WHERE subject <> 'store'
  AND id NOT IN (SELECT data_key FROM versions WHERE data_key IS NOT NULL)
  AND id NOT IN (SELECT data_key FROM replays)
ORDER BY subject
