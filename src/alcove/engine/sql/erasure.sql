-- Erasure. Every statement is limited by a position in the log: when a restored backup repeats a wipe, a user who
-- came back after that wipe retains newer data.

-- name: owned_namespaces
SELECT ns FROM namespaces WHERE owner = ?

-- name: count_live
-- Memories as a user counts them: live and not expired.
SELECT count(*) FROM versions {by_live}
WHERE ns = ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?) AND seq <= ?

-- name: wipe_namespace
DELETE FROM versions WHERE ns = ? AND seq <= ?

-- name: count_vectors
SELECT count(*) FROM vectors WHERE ns = ?

-- name: wipe_key
DELETE FROM versions WHERE ns = ? AND key = ? AND seq <= ?

-- name: erasures
SELECT CAST(sum(value) AS BIGINT) FROM marks WHERE name IN ('wipes', 'clears')

-- name: count_clear
-- Tells caches of searches that something was removed without an entry in the log.
UPDATE marks SET value = value + 1 WHERE name = 'clears'

-- name: wipe_stored_answers
DELETE FROM replays WHERE "user" = ? AND position <= ?

-- name: wipe_api_keys
DELETE FROM api_keys WHERE "user" = ? AND position <= ?

-- name: wipe_data_key
-- The subject's data key, if no data of the user is sealed with it any more.
DELETE FROM data_keys WHERE subject = ?1
    AND NOT EXISTS (SELECT 1 FROM namespaces WHERE owner = ?2)
    AND NOT EXISTS (SELECT 1 FROM replays WHERE "user" = ?2)

-- name: anonymise
UPDATE versions SET "user" = NULL, client = NULL, formerly = CASE WHEN sealed IS NULL THEN NULL ELSE ? END WHERE seq = ?

-- name: remove_version
DELETE FROM versions WHERE seq = ?

-- name: clear_tombstone
-- Clears the attributes that a tombstone retains for the policy, because they were derived from removed content.
UPDATE versions SET attributes = '{}' WHERE ns = ? AND key = ? AND revision = ? AND sealed IS NULL

-- name: anonymise_audit
-- Replaces a user's name by their pseudonym, so that a wipe does not hide what they did. A name that equals the
-- pseudonym of a subject stays: otherwise a wipe of a user of that name would change entries of the wiped subject.
UPDATE audit SET actor = ?2 WHERE actor = ?1 AND NOT EXISTS (SELECT 1 FROM audit WHERE subject = ?1)

-- name: anonymise_documents
UPDATE documents SET actor = NULL WHERE actor = ?

-- name: live_version_until
-- The live version of a key, if it is not newer than a position.
SELECT seq, ns, key, revision, owner FROM versions WHERE ns = ? AND key = ? AND ended_at IS NULL AND seq <= ?

-- name: remove_content
-- The content of a key up to a position; tombstones stay, because revisions are counted by them.
DELETE FROM versions WHERE ns = ? AND key = ? AND seq <= ? AND sealed IS NOT NULL

-- name: set_tombstone_attributes
UPDATE versions SET attributes = ?4 WHERE ns = ?1 AND key = ?2 AND seq <= ?3 AND sealed IS NULL

-- name: users
-- All users about whom there is any data.
SELECT owner FROM namespaces WHERE owner IS NOT NULL
UNION SELECT "user" FROM versions WHERE "user" IS NOT NULL
UNION SELECT "user" FROM replays
UNION SELECT "user" FROM api_keys WHERE "user" IS NOT NULL
UNION SELECT actor FROM audit WHERE actor IS NOT NULL
UNION SELECT actor FROM documents WHERE actor IS NOT NULL

-- name: subjects
SELECT subject FROM data_keys

-- name: pseudonyms
SELECT DISTINCT formerly FROM versions {by_anonymised} WHERE formerly IS NOT NULL

-- name: unowned_namespaces
SELECT ns FROM namespaces WHERE owner IS NULL

-- name: log_position
SELECT {log_end}

-- name: position_at
-- The last sequence number at a moment.
SELECT seq FROM versions WHERE created_at <= ? ORDER BY seq DESC LIMIT 1
