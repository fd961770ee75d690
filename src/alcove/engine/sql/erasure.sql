-- Erasing. Every statement is bound by a moment: a user who came back after a wipe keeps what is newer,
-- when a restored backup is made to forget again.

-- name: owned
SELECT ns FROM namespaces WHERE owner = ?

-- name: count_live
-- What a user would call their memories: live and not past their expiry.
SELECT count(*) FROM versions INDEXED BY live
WHERE ns = ? AND ended_at IS NULL AND (expires_at IS NULL OR expires_at > ?) AND created_at <= ?

-- name: wipe_namespace
DELETE FROM versions WHERE ns = ? AND created_at <= ?

-- name: count_vectors
SELECT count(*) FROM vectors WHERE ns = ?

-- name: cleared
-- Tells whoever remembers a search that something is gone of which the log says nothing.
UPDATE marks SET value = value + 1 WHERE name = 'clears'

-- name: wipe_replays
DELETE FROM replays WHERE user = ? AND created_at <= ?

-- name: wipe_api_keys
DELETE FROM api_keys WHERE user = ? AND created_at <= ?

-- name: wipe_key
-- The subject's data key, once nothing of the user is sealed with it.
DELETE FROM data_keys WHERE subject = ?1
    AND NOT EXISTS (SELECT 1 FROM namespaces WHERE owner = ?2)
    AND NOT EXISTS (SELECT 1 FROM replays WHERE user = ?2)

-- name: authored
-- What a user wrote into rooms that are not their own.
SELECT seq, ns, key, revision, owner, '{}', ended_at IS NULL, sealed IS NOT NULL
FROM versions INDEXED BY authored
WHERE user = ? AND user IS NOT owner AND created_at <= ?

-- name: anonymise
UPDATE versions SET user = NULL, client = NULL WHERE seq = ?

-- name: remove
DELETE FROM versions WHERE seq = ?

-- name: forget_actor
UPDATE audit SET actor = NULL WHERE actor = ? AND at <= ?

-- name: forget_document_actor
UPDATE documents SET actor = NULL WHERE actor = ? AND at <= ?

-- name: live_until
-- The live version of a key, if it is not newer than a moment.
SELECT seq, ns, key, revision, owner, '{}' FROM versions
WHERE ns = ? AND key = ? AND ended_at IS NULL AND created_at <= ?

-- name: clean
-- All that a key held until a moment; tombstones stay, for the count of revisions.
DELETE FROM versions WHERE ns = ? AND key = ? AND created_at <= ? AND sealed IS NOT NULL

-- name: users
-- Everybody of whom there is anything.
SELECT owner FROM namespaces WHERE owner IS NOT NULL
UNION SELECT user FROM versions WHERE user IS NOT NULL
UNION SELECT user FROM replays
UNION SELECT user FROM api_keys WHERE user IS NOT NULL
UNION SELECT actor FROM audit WHERE actor IS NOT NULL
UNION SELECT actor FROM documents WHERE actor IS NOT NULL

-- name: subjects
SELECT subject FROM data_keys

-- name: skip
UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'versions'
