-- Version 2 of the schema in PostgreSQL. Version 1 was edited in place several times, so some stores of that version lack
-- tables, columns, keys or functions. This version adds what is missing, and changes nothing in a store that the published
-- version 1 created.

CREATE TABLE IF NOT EXISTS searchable (
    "only"     BIGINT PRIMARY KEY CHECK ("only" = 1),
    embedder   TEXT   NOT NULL,
    dimensions BIGINT NOT NULL,
    upto       BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS vector_store (
    "only"     BIGINT PRIMARY KEY CHECK ("only" = 1),
    store      TEXT   NOT NULL,
    collection TEXT   NOT NULL,
    upto       BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS to_remove (
    ns  BYTEA  NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (ns, seq)
);
CREATE INDEX IF NOT EXISTS to_remove_by_seq ON to_remove (seq);

DO $$
DECLARE
    numbered RECORD;
    last     BIGINT;
    is_used  BOOLEAN;
BEGIN
    IF EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = 'versions'::regclass AND tgname = 'version_told') THEN
        DROP TRIGGER version_told ON versions;  -- who listens tells of commits
        DROP FUNCTION version_told();
    END IF;

    IF EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'to_index'::regclass AND attname = 'ns') THEN
        RETURN;  -- its keys begin with whose a row is
    END IF;

    FOR numbered IN  -- a sequence that outlives a split of the table, instead of an identity column
        SELECT attrelid::regclass AS name, attname, format('%s_%s_seq', relname, attname) AS counter
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE attidentity <> ''
        AND attrelid IN ('versions'::regclass, 'data_keys'::regclass, 'vectors'::regclass, 'pieces'::regclass, 'touches'::regclass)
    LOOP
        EXECUTE format('SELECT last_value, is_called FROM %s', pg_get_serial_sequence(numbered.name::text, numbered.attname))
        INTO last, is_used;
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I DROP IDENTITY', numbered.name, numbered.attname);
        EXECUTE format('CREATE SEQUENCE %I OWNED BY %s.%I', numbered.counter, numbered.name, numbered.attname);
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT nextval(%L)', numbered.name, numbered.attname, numbered.counter);
        PERFORM setval(numbered.counter::regclass, last, is_used);
    END LOOP;

    ALTER TABLE versions DROP CONSTRAINT IF EXISTS versions_kind_check, DROP CONSTRAINT versions_pkey,
        ADD CONSTRAINT history PRIMARY KEY USING INDEX history;
    CREATE INDEX versions_by_seq ON versions (seq);

    ALTER TABLE data_keys DROP CONSTRAINT data_keys_pkey, DROP CONSTRAINT data_keys_subject_key, ADD PRIMARY KEY (subject);
    CREATE INDEX data_keys_by_id ON data_keys (id);

    ALTER TABLE vectors DROP CONSTRAINT vectors_pkey, ADD CONSTRAINT vectors_of PRIMARY KEY USING INDEX vectors_of;
    CREATE INDEX vectors_by_id ON vectors (id);

    ALTER TABLE to_index ADD COLUMN ns BYTEA;
    UPDATE to_index t SET ns = v.ns FROM versions v WHERE v.seq = t.seq;
    DELETE FROM to_index WHERE ns IS NULL;
    ALTER TABLE to_index DROP CONSTRAINT to_index_pkey, ALTER COLUMN ns SET NOT NULL, ADD PRIMARY KEY (ns, seq);
    CREATE INDEX to_index_by_seq ON to_index (seq);
    DROP INDEX to_index_by_turn;
    CREATE INDEX to_index_by_turn ON to_index (turn) WHERE due >= 0;

    ALTER TABLE pieces ADD COLUMN ns BYTEA;
    UPDATE pieces p SET ns = v.ns FROM versions v WHERE v.seq = p.seq;
    DELETE FROM pieces WHERE ns IS NULL;
    ALTER TABLE pieces DROP CONSTRAINT pieces_pkey, ALTER COLUMN ns SET NOT NULL, ADD PRIMARY KEY (ns, seq, id);

    ALTER TABLE touches ADD COLUMN ns BYTEA;
    UPDATE touches t SET ns = v.ns FROM versions v WHERE v.seq = t.seq;
    DELETE FROM touches WHERE ns IS NULL;
    ALTER TABLE touches DROP CONSTRAINT touches_pkey, DROP CONSTRAINT touches_seq_key,
        ALTER COLUMN ns SET NOT NULL, ADD PRIMARY KEY (ns, seq);
    CREATE INDEX touches_by_id ON touches (id);

    IF NOT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = 'to_remove'::regclass AND attname = 'ns') THEN
        ALTER TABLE to_remove DROP CONSTRAINT to_remove_pkey;
        ALTER TABLE to_remove RENAME TO to_remove_before;
        CREATE TABLE to_remove (
            ns  BYTEA  NOT NULL,
            seq BIGINT NOT NULL,
            PRIMARY KEY (ns, seq)
        );
        INSERT INTO to_remove SELECT coalesce(v.ns, ''), b.seq FROM to_remove_before b LEFT JOIN versions v USING (seq);
        DROP TABLE to_remove_before;  -- with its index, which has the name of the new one
        CREATE INDEX to_remove_by_seq ON to_remove (seq);
    END IF;

    -- What texts are found by is made again from their vectors.
    EXECUTE format('DROP TABLE IF EXISTS %I.windows', current_schema());
    DROP TABLE IF EXISTS terms;
    DELETE FROM searchable;
END $$;

CREATE TABLE IF NOT EXISTS terms (
    ns    BYTEA    NOT NULL,
    seq   BIGINT   NOT NULL,
    terms BIGINT[] NOT NULL,
    PRIMARY KEY (ns, seq)
);
CREATE INDEX IF NOT EXISTS terms_by_seq ON terms (seq);
CREATE INDEX IF NOT EXISTS terms_held ON terms USING gin (terms) WITH (fastupdate = off);
ALTER INDEX terms_held SET (fastupdate = off);

-- Keeps the queue and the vectors in step with every write, in the same transaction.
CREATE OR REPLACE FUNCTION version_to_index() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO to_index (ns, seq, due, writer, size, turn)
    SELECT NEW.ns, NEW.seq, 0, NEW."user", octet_length(NEW.index_text), greatest(value, coalesce((
        SELECT turn + size FROM to_index WHERE writer = NEW."user" AND due IS NOT NULL ORDER BY turn DESC LIMIT 1), (
        SELECT turn + size FROM to_index WHERE NEW."user" IS NULL AND writer IS NULL AND due IS NOT NULL
        ORDER BY turn DESC LIMIT 1), 0))  -- two looks: `IS NOT DISTINCT FROM` would go along no index
    FROM marks WHERE name = 'turn';
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION version_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM touches WHERE ns = OLD.ns AND seq = OLD.seq;
    IF OLD.index_text IS NULL THEN
        RETURN NULL;
    END IF;
    DELETE FROM to_index WHERE ns = OLD.ns AND seq = OLD.seq;
    DELETE FROM vectors WHERE ns = OLD.ns AND seq = OLD.seq;
    DELETE FROM terms WHERE ns = OLD.ns AND seq = OLD.seq;  -- and, by its foreign key, of `windows`
    IF OLD.ended_at IS NULL THEN
        INSERT INTO to_remove SELECT OLD.ns, OLD.seq FROM vector_store ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION version_touched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM touches WHERE ns = NEW.ns AND seq = NEW.seq;
    INSERT INTO touches (ns, seq) VALUES (NEW.ns, NEW.seq);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION version_renamed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE to_index SET writer = NEW."user" WHERE ns = NEW.ns AND seq = NEW.seq;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION text_left_queue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM pieces WHERE ns = OLD.ns AND seq = OLD.seq;
    RETURN NULL;
END $$;

-- The moment of an RFC 3339 text in microseconds, or NULL if the text is not one; the same rules as core/clock.py.
CREATE OR REPLACE FUNCTION alcove_instant(told TEXT) RETURNS BIGINT LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF told !~ '^\d{4}-\d\d-\d\d[Tt ]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)$' THEN
        RETURN NULL;
    END IF;
    RETURN (extract(epoch FROM regexp_replace(told, '(\.\d{6})\d+', '\1')::timestamptz) * 1000000)::bigint;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- The number of the writers' lock: each schema of a database, and so each store in it, has its own.
CREATE OR REPLACE FUNCTION alcove_writing() RETURNS BIGINT LANGUAGE sql STABLE AS $$
    SELECT 71933780951041 + hashtext(current_schema())
$$;

-- One put and its turn, as `transaction.Transaction` does it, in one round trip. Returns the version's number, revision
-- and time, and for an update the time since when the key has had a live version. A refused put returns -1 if the rules
-- that allowed it have changed, -2 if its data key was destroyed, and -3 with the current revision (0 if there is none) if
-- another one was expected.
CREATE OR REPLACE FUNCTION alcove_put(
    allowed_by BIGINT, at BIGINT, expected BIGINT, until BIGINT, its_ttl BIGINT, its_original_at BIGINT,
    its_added_at BIGINT, its_id BYTEA, its_ns BYTEA, its_key BYTEA, its_owner TEXT, its_user TEXT, its_client TEXT,
    its_agent TEXT, its_data_key BIGINT, its_sealed BYTEA, its_attributes TEXT, its_index_text TEXT
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE
    documents BIGINT;
    known     BOOLEAN;
    sealable  BOOLEAN;
    last      BIGINT;  -- the newest revision,
    unended   BIGINT;  -- its number where the log has not ended it,
    since     BIGINT;  -- and, where it is live, since when its key has held something
    number    BIGINT;
BEGIN
    PERFORM pg_advisory_xact_lock(alcove_writing());
    -- Two statements, into variables: a join of them, into a record, takes the server a sixth longer to look.
    SELECT (SELECT value FROM marks WHERE name = 'documents'),
           greatest(at, (SELECT created_at + 1 FROM versions ORDER BY seq DESC LIMIT 1)),
           EXISTS (SELECT 1 FROM namespaces WHERE ns = its_ns), EXISTS (SELECT 1 FROM data_keys WHERE id = its_data_key)
    INTO documents, at, known, sealable;
    SELECT revision, CASE WHEN ended_at IS NULL THEN seq END,
           CASE WHEN ended_at IS NULL AND (expires_at IS NULL OR expires_at > at)
               THEN coalesce(added_at, original_at, created_at) END
    INTO last, unended, since FROM versions WHERE ns = its_ns AND key = its_key ORDER BY revision DESC LIMIT 1;
    IF allowed_by <> documents THEN
        RETURN ARRAY[-1];
    ELSIF expected <> (CASE WHEN since IS NULL THEN 0 ELSE last END) THEN
        RETURN ARRAY[-3, CASE WHEN since IS NULL THEN 0 ELSE last END];
    ELSIF NOT sealable THEN
        RETURN ARRAY[-2];
    END IF;
    IF unended IS NOT NULL THEN
        UPDATE versions SET ended_at = at WHERE seq = unended;
        IF since IS NULL THEN  -- it was past its expiry, which is recorded first
            last := last + 1;
            INSERT INTO versions (id, ns, key, kind, revision, created_at, attributes, owner, ended_at)
            SELECT uuid_send(gen_random_uuid()), ns, key, 'expired', last, at, attributes, owner, at
            FROM versions WHERE seq = unended;
        END IF;
    END IF;
    IF NOT known THEN
        INSERT INTO namespaces (ns, owner) VALUES (its_ns, its_owner) ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO versions (id, ns, key, kind, revision, created_at, expires_at, "user", client, agent, data_key, sealed,
                          attributes, index_text, original_at, ttl, added_at, owner)
    VALUES (its_id, its_ns, its_key, CASE WHEN since IS NULL THEN 'add' ELSE 'update' END, coalesce(last, 0) + 1, at,
            coalesce(until, at + its_ttl), its_user, its_client, its_agent, its_data_key, its_sealed, its_attributes,
            its_index_text, CASE WHEN its_original_at < at THEN its_original_at END,  -- one to come is not believed
            its_ttl, CASE WHEN since IS NOT NULL THEN least(since, its_original_at)
                          WHEN its_added_at < at THEN its_added_at END, its_owner)
    RETURNING seq INTO number;
    RETURN ARRAY[number, coalesce(last, 0) + 1, at, since];
END $$;
