-- Version 4: search by meaning. Vectors are computed from `index_text`, which is stored in plain text, and so are they.
CREATE TABLE vectors (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which they came, for who has read up to one
    ns       BLOB    NOT NULL,
    seq      INTEGER NOT NULL,                   -- the version they belong to
    embedder TEXT    NOT NULL,
    body     BLOB    NOT NULL                    -- MessagePack: rows of float32 by field
);
CREATE UNIQUE INDEX vectors_of ON vectors (ns, seq, embedder);

-- The queue of versions that need vectors. To claim one, `due` is set ahead; to park it, `due` is set to NULL.
CREATE TABLE to_index (
    seq   INTEGER PRIMARY KEY,
    due   INTEGER,
    tries INTEGER NOT NULL DEFAULT 0,
    error TEXT
);
CREATE INDEX to_index_by_due ON to_index (due) WHERE due IS NOT NULL;
INSERT INTO to_index (seq, due) SELECT seq, 0 FROM versions WHERE ended_at IS NULL AND index_text IS NOT NULL;

-- Keep both tables in step with every write, in the same transaction, so that no other statement needs to know of them.
CREATE TRIGGER version_to_index AFTER INSERT ON versions
WHEN NEW.index_text IS NOT NULL AND NEW.ended_at IS NULL BEGIN
    INSERT INTO to_index (seq, due) VALUES (NEW.seq, 0);
END;
CREATE TRIGGER version_ended AFTER UPDATE OF ended_at ON versions
WHEN NEW.ended_at IS NOT NULL AND OLD.index_text IS NOT NULL BEGIN
    DELETE FROM to_index WHERE seq = OLD.seq;
    DELETE FROM vectors WHERE ns = OLD.ns AND seq = OLD.seq;
END;
CREATE TRIGGER version_gone AFTER DELETE ON versions
WHEN OLD.index_text IS NOT NULL BEGIN
    DELETE FROM to_index WHERE seq = OLD.seq;
    DELETE FROM vectors WHERE ns = OLD.ns AND seq = OLD.seq;
END;
-- A touch creates no version, but caches of expiry times must notice it.
CREATE TRIGGER version_touched AFTER UPDATE OF expires_at ON versions BEGIN
    UPDATE marks SET value = value + 1 WHERE name = 'touches';
END;
INSERT INTO marks VALUES ('touches', 0);

-- The embedder whose vectors are searched. A reindex changes it when the new one has all its vectors.
CREATE TABLE serving (
    only     INTEGER PRIMARY KEY CHECK (only = 1),
    embedder TEXT NOT NULL
);
