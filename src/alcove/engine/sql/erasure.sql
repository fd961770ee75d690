-- Erasing. Every statement is bound by a position in the log: a user who came back after a wipe keeps what is
-- newer, when a restored backup is made to forget again.

-- name: owned_namespaces
SELECT ns FROM namespaces WHERE owner = ?

-- name: count_live
-- What a user would call their memories: live and not past their expiry.
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
-- Tells whoever remembers a search that something is gone of which the log says nothing.
UPDATE marks SET value = value + 1 WHERE name = 'clears'

-- name: wipe_stored_answers
DELETE FROM replays WHERE "user" = ? AND position <= ?

-- name: wipe_api_keys
DELETE FROM api_keys WHERE "user" = ? AND position <= ?

-- name: wipe_data_key
-- The subject's data key, once nothing of the user is sealed with it.
DELETE FROM data_keys WHERE subject = ?1
    AND NOT EXISTS (SELECT 1 FROM namespaces WHERE owner = ?2)
    AND NOT EXISTS (SELECT 1 FROM replays WHERE "user" = ?2)

-- name: anonymise
UPDATE versions SET "user" = NULL, client = NULL, formerly = CASE WHEN sealed IS NULL THEN NULL ELSE ? END WHERE seq = ?

-- name: remove_version
DELETE FROM versions WHERE seq = ?

-- name: clear_tombstone
-- The attributes that a tombstone keeps for the policy were made of the content before it.
UPDATE versions SET attributes = '{}' WHERE ns = ? AND key = ? AND revision = ? AND sealed IS NULL

-- name: anonymise_audit
-- Replaces a user's name by their pseudonym, so that a wipe does not hide what they did. A name that is itself the
-- pseudonym of a subject stays: else a wipe of a user of that name would hide the entries that have it by a wipe.
UPDATE audit SET actor = ?2 WHERE actor = ?1 AND NOT EXISTS (SELECT 1 FROM audit WHERE subject = ?1)

-- name: anonymise_documents
UPDATE documents SET actor = NULL WHERE actor = ?

-- name: live_version_until
-- The live version of a key, if it is not newer than a position.
SELECT seq, ns, key, revision, owner FROM versions WHERE ns = ? AND key = ? AND ended_at IS NULL AND seq <= ?

-- name: remove_content
-- All that a key held until a position; tombstones stay, for the count of revisions.
DELETE FROM versions WHERE ns = ? AND key = ? AND seq <= ? AND sealed IS NOT NULL

-- name: set_tombstone_attributes
UPDATE versions SET attributes = ?4 WHERE ns = ?1 AND key = ?2 AND seq <= ?3 AND sealed IS NULL

-- name: users
-- Everybody of whom there is anything.
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
-- How far the log was at a moment.
SELECT seq FROM versions WHERE created_at <= ? ORDER BY seq DESC LIMIT 1
