-- Rewriting tables so that no byte of deleted rows is left in PostgreSQL's data files: see `engine/postgres/scrub.py`.

-- name: store_tables
-- The tables of a store by their names, and their partitions; for each, whether it is partitioned, and whether the
-- planner has statistics about it.
WITH named AS (
    SELECT oid FROM pg_class WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind IN ('r', 'p')
    AND relname IN (SELECT value FROM json_array_elements_text(CAST(? AS JSON)))),
every AS (SELECT oid FROM named UNION SELECT relid FROM named, pg_partition_tree(named.oid))
SELECT CAST(c.oid AS BIGINT), CAST(CAST(c.oid AS regclass) AS TEXT), relkind = 'p', EXISTS (
    SELECT 1 FROM pg_stats WHERE schemaname = nspname AND tablename = relname)
FROM every JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = relnamespace ORDER BY relkind, relname

-- name: next_transaction
SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT)

-- name: no_old_snapshots
-- Whether no snapshot is older than a transaction: rows that an old snapshot sees are not removed.
SELECT pg_snapshot_xmin(pg_current_snapshot()) >= CAST(CAST(?1 AS TEXT) AS xid8) AND NOT EXISTS (
    SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND age(backend_xmin) > {age} UNION ALL
    SELECT 1 FROM pg_prepared_xacts WHERE age(transaction) > {age} UNION ALL
    SELECT 1 FROM pg_replication_slots WHERE age(xmin) > {age} OR age(catalog_xmin) > {age})

-- name: rewrite
VACUUM (FULL, FREEZE) {table}

-- name: rewrite_and_analyze
VACUUM (FULL, FREEZE, ANALYZE) {table}

-- name: is_rewritten
-- Whether the last rewrite of a table removed all rows that were deleted before a transaction: with FREEZE it sets
-- `relfrozenxid` to the oldest transaction that any snapshot could still see.
SELECT age(relfrozenxid) <= {age} FROM pg_class WHERE oid = CAST(CAST(?2 AS TEXT) AS regclass)

-- name: lock_writers
SELECT pg_advisory_xact_lock(alcove_writing())

-- name: is_empty
SELECT NOT EXISTS (SELECT 1 FROM {table})

-- name: analyze
ANALYZE {table}

-- name: required_columns
-- The required columns of a table, their types, whether each is the namespace, and the bounds of a partition.
SELECT quote_ident(attname), CAST(CAST(atttypid AS regtype) AS TEXT), attname = 'ns',
       (SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = attrelid)
FROM pg_attribute WHERE attrelid = CAST(? AS OID) AND attnum > 0 AND NOT attisdropped AND attnotnull

-- name: insert_blank
INSERT INTO {table} ({names}) VALUES ({values})

-- name: delete_blank
DELETE FROM {table} WHERE xmin = CAST(pg_current_xact_id() AS xid)

-- name: may_rewrite_statistics
-- Whether this role owns the database.
SELECT pg_has_role(current_user, datdba, 'USAGE') FROM pg_database WHERE datname = current_database()

-- name: may_rewrite
-- Whether this role may VACUUM a table.
SELECT pg_has_role(current_user, relowner, 'USAGE')
       OR (SELECT pg_has_role(current_user, datdba, 'USAGE') FROM pg_database WHERE datname = current_database())
       OR CASE WHEN CAST(current_setting('server_version_num') AS INT) >= 170000
               THEN has_table_privilege(oid, 'MAINTAIN') ELSE FALSE END
FROM pg_class WHERE oid = CAST(? AS OID)
