-- Splits the tables that hold users' data by tenant:
--     psql DATABASE -v bounds="{user:h,user:q}" -f deploy/partitions.sql
--
-- A namespace begins with its tenant, so everything that sorts before `user:h` is in the first part, and so on. Each part
-- is a table (`versions_1`, `versions_2`, …) with its own indexes: you can put it on another disk (`ALTER TABLE versions_2
-- SET TABLESPACE …`), and it is vacuumed by itself. PostgreSQL refuses the split if any key spans two parts.
--
-- Stop the nodes first. Give the bounds in ascending order, tens of them at most, spelled as above. The script does
-- everything or nothing, and works only once; it needs free space of the size of the largest table. The tables for large
-- pools that are derived from the vectors (`terms`, `windows`) are not split.

\set ON_ERROR_STOP on
BEGIN;
SELECT set_config('alcove.bounds', :'bounds', TRUE);
SELECT set_config('role', pg_get_userbyid(relowner), TRUE) FROM pg_class WHERE oid = 'versions'::regclass;

DO $$
DECLARE
    split    TEXT;
    bound    TEXT;
    low      TEXT;
    high     TEXT;
    part     INTEGER;
    made     TEXT;
    last     TEXT[];
BEGIN
    FOREACH split IN ARRAY ARRAY['versions', 'namespaces', 'vectors', 'to_index', 'pieces', 'touches', 'to_remove'] LOOP
        EXECUTE format('ALTER TABLE %I RENAME TO whole', split);
        EXECUTE format('CREATE TABLE %I (LIKE whole INCLUDING ALL) PARTITION BY RANGE (ns)', split);
        low := 'MINVALUE';
        part := 0;
        FOREACH bound IN ARRAY current_setting('alcove.bounds')::TEXT[] || NULL::TEXT LOOP
            part := part + 1;
            SELECT coalesce(quote_literal(string_agg(convert_to(segment, 'UTF8'), '\x00' ORDER BY place)), 'MAXVALUE')
            INTO high FROM unnest(string_to_array(bound, ':')) WITH ORDINALITY named (segment, place);
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%s) TO (%s)',
                           split || '_' || part, split, low, high);
            low := high;
        END LOOP;
        EXECUTE format('INSERT INTO %I SELECT * FROM whole', split);
        FOR made IN  -- sequences continue with the new table
            SELECT format('ALTER SEQUENCE %s OWNED BY %I.%I', pg_get_serial_sequence('whole', attname), split, attname)
            FROM pg_attribute WHERE attrelid = 'whole'::regclass AND attnum > 0
              AND pg_get_serial_sequence('whole', attname) IS NOT NULL
        LOOP
            EXECUTE made;
        END LOOP;
        SELECT array_agg(rest) INTO last FROM (  -- triggers, grants, and index names, which an upgrade may use
            SELECT replace(pg_get_triggerdef(oid), format('%I.whole ', current_schema()), format('%I ', split)) AS rest
            FROM pg_trigger WHERE tgrelid = 'whole'::regclass AND NOT tgisinternal
            UNION ALL
            SELECT format('GRANT %s ON %I TO %s', privilege_type, split,
                          CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END)
                   || CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
            FROM pg_class, aclexplode(relacl) WHERE oid = 'whole'::regclass AND grantee <> relowner
            UNION ALL
            SELECT format('ALTER INDEX %s RENAME TO %s', new.indexrelid::regclass, old.indexrelid::regclass)
            FROM pg_index old JOIN pg_index new ON new.indrelid = split::regclass
                AND split_part(pg_get_indexdef(new.indexrelid), ' USING ', 2)
                  = split_part(pg_get_indexdef(old.indexrelid), ' USING ', 2)
            WHERE old.indrelid = 'whole'::regclass) rests;
        DROP TABLE whole;
        FOREACH made IN ARRAY last LOOP
            EXECUTE made;
        END LOOP;
    END LOOP;
END $$;
COMMIT;
