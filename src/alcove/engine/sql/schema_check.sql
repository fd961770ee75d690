-- PostgreSQL's description of a store's schema: see `engine/schema_check.py`.

-- name: schema_lines
-- One line for each table, column, index, trigger, rule and constraint of some tables, and for each of some functions
-- with a digest of its text.
WITH tables AS (
    SELECT oid, relname, relpersistence FROM pg_class
    WHERE relnamespace = CAST(quote_ident(current_schema()) AS regnamespace) AND relkind IN ('r', 'p')
    AND relname IN (SELECT value FROM json_array_elements_text(CAST(?1 AS JSON))))
SELECT format('table %s%s%s', relname, CASE relpersistence WHEN 'p' THEN '' ELSE ', unlogged' END,
              CASE WHEN row_security_active(oid) THEN ', with row security' ELSE '' END)
FROM tables
UNION ALL
SELECT format('column %s.%s %s%s%s', relname, attname, format_type(atttypid, atttypmod),
              CASE WHEN attnotnull THEN ' not null' ELSE '' END,
              CASE WHEN attgenerated <> '' THEN ' generated' WHEN attidentity <> '' THEN ' identity'
                   ELSE coalesce(' default ' || pg_get_expr(adbin, adrelid), '') END)
FROM tables JOIN pg_attribute ON attrelid = tables.oid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attnum > 0 AND NOT attisdropped
UNION ALL
SELECT format('%s %s on %s (%s)%s', CASE WHEN indisunique THEN 'unique index' ELSE 'index' END, c.relname, t.relname, (
    SELECT string_agg(pg_get_indexdef(indexrelid, n, TRUE), ', ' ORDER BY n) FROM generate_series(1, indnkeyatts) n),
    coalesce(' where ' || pg_get_expr(indpred, indrelid, TRUE), ''))
FROM tables t JOIN pg_index ON indrelid = t.oid JOIN pg_class c ON c.oid = indexrelid WHERE indisvalid
UNION ALL
SELECT format('trigger %s%s', split_part(pg_get_triggerdef(t.oid, TRUE), 'TRIGGER ', 2),
              CASE WHEN tgenabled IN ('O', 'A') THEN '' ELSE ', off' END)
FROM tables JOIN pg_trigger t ON tgrelid = tables.oid WHERE NOT tgisinternal
UNION ALL
SELECT format('rule %s on %s', rulename, relname) FROM tables JOIN pg_rewrite ON ev_class = tables.oid
UNION ALL
SELECT format('constraint %s on %s %s', conname, relname, pg_get_constraintdef(c.oid, TRUE))
FROM tables JOIN pg_constraint c ON conrelid = tables.oid WHERE contype IN ('c', 'f', 'x')
UNION ALL
SELECT format('function %s(%s) returns %s, %s%s%s%s%s %s', proname, pg_get_function_arguments(p.oid),
              pg_get_function_result(p.oid), lanname,
              CASE provolatile WHEN 'i' THEN ' immutable' WHEN 's' THEN ' stable' ELSE '' END,
              CASE WHEN proisstrict THEN ' strict' ELSE '' END, CASE WHEN prosecdef THEN ' security definer' ELSE '' END,
              coalesce(' set ' || array_to_string(proconfig, ', '), ''), md5(prosrc))
FROM pg_proc p JOIN pg_language l ON l.oid = prolang
WHERE pronamespace = CAST(quote_ident(current_schema()) AS regnamespace)
AND proname IN (SELECT value FROM json_array_elements_text(CAST(?2 AS JSON)))
ORDER BY 1
