-- Notices of `alcove doctor` about what is unusual but not wrong; see checks.sql for the format.

-- name: every data key seals something
SELECT count(*) FROM data_keys WHERE subject <> 'store';
SELECT subject FROM data_keys
WHERE subject <> 'store'
  AND id NOT IN (SELECT data_key FROM versions WHERE data_key IS NOT NULL)
  AND id NOT IN (SELECT data_key FROM replays)
ORDER BY subject
