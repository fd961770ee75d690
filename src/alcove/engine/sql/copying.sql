-- Statements for copying a store and comparing it with the copy; they must work with a schema of any version.

-- name: table_rows
SELECT {fields} FROM {table} WHERE {condition} ORDER BY {order} LIMIT ?

-- name: table_row_count
SELECT count(*) FROM {table} WHERE {condition}

-- name: delete_rows
DELETE FROM {table} WHERE {condition}

-- name: insert_rows
INSERT INTO {table} ({fields}) VALUES ({places})

-- name: store_state
-- Changes with every write to a store, except writes to its index, which is derived from it.
SELECT (SELECT coalesce(max(seq), 0) FROM versions), (SELECT coalesce(max(seq), 0) FROM audit),
       (SELECT coalesce(max(id), 0) FROM touches), (SELECT coalesce(max(version), 0) FROM documents),
       (SELECT coalesce(max(id), 0) FROM data_keys), (SELECT count(*) FROM api_keys),
       (SELECT count(*) FROM private_rooms),
       (SELECT CAST(sum(value) AS BIGINT) FROM marks
        WHERE name NOT IN ('scrubbed', 'turn', 'copied_from', 'copied_as')),
       (SELECT value FROM marks WHERE name = 'wipes')

-- name: versions_since
SELECT count(*) FROM versions WHERE seq > ?

-- name: copy_marks
SELECT (SELECT value FROM marks WHERE name = 'copied_from'), (SELECT value FROM marks WHERE name = 'copied_as')

-- name: set_copy_mark
INSERT INTO marks (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2
