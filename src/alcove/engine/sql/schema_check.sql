-- What PostgreSQL says of a store's schema: see `engine/schema_check.py`.

-- name: schema_lines
-- A line for each column, index and trigger of some tables, and for each of some functions with a digest of its text.
WITH tables AS (
    SELECT oid, relname FROM pg_class WHERE relnamespace = CAST(current_schema() AS regnamespace)
    AND relkind IN ('r', 'p') AND relname IN (SELECT value FROM json_array_elements_text(CAST(?1 AS JSON))))
SELECT format('column %s.%s %s%s', relname, attname, format_type(atttypid, atttypmod),
              CASE WHEN attnotnull THEN ' not null' ELSE '' END)
FROM tables JOIN pg_attribute ON attrelid = tables.oid WHERE attnum > 0 AND NOT attisdropped
UNION ALL
SELECT format('%s %s on %s (%s)%s', CASE WHEN indisunique THEN 'unique index' ELSE 'index' END, c.relname, t.relname, (
    SELECT string_agg(pg_get_indexdef(indexrelid, n, TRUE), ', ' ORDER BY n) FROM generate_series(1, indnkeyatts) n),
    coalesce(' where ' || pg_get_expr(indpred, indrelid, TRUE), ''))
FROM tables t JOIN pg_index ON indrelid = t.oid JOIN pg_class c ON c.oid = indexrelid WHERE indisvalid
UNION ALL
SELECT format('trigger %s on %s calls %s%s', tgname, relname, proname, CASE tgenabled WHEN 'O' THEN '' ELSE ', off' END)
FROM tables JOIN pg_trigger ON tgrelid = tables.oid JOIN pg_proc p ON p.oid = tgfoid WHERE NOT tgisinternal
UNION ALL
SELECT format('function %s(%s) %s', proname, oidvectortypes(proargtypes), md5(prosrc))
FROM pg_proc WHERE pronamespace = CAST(current_schema() AS regnamespace)
AND proname IN (SELECT value FROM json_array_elements_text(CAST(?2 AS JSON)))
ORDER BY 1
