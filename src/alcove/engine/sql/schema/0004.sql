-- Version 4: search by meaning. Vectors are made from `index_text`, which is plain by contract, and so are they.
CREATE TABLE vectors (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which they came, for who has read up to one
    ns       BLOB    NOT NULL,
    seq      INTEGER NOT NULL,                   -- the version they belong to
    embedder TEXT    NOT NULL,
    body     BLOB    NOT NULL                    -- MessagePack: rows of float32 by field
);
CREATE UNIQUE INDEX vectors_of ON vectors (ns, seq, embedder);

-- Versions that wait for their vectors: claimed by setting `due` ahead, parked by setting it to NULL.
CREATE TABLE to_index (
    seq   INTEGER PRIMARY KEY,
    due   INTEGER,
    tries INTEGER NOT NULL DEFAULT 0,
    error TEXT
);
CREATE INDEX to_index_by_due ON to_index (due) WHERE due IS NOT NULL;
INSERT INTO to_index (seq, due) SELECT seq, 0 FROM versions WHERE ended_at IS NULL AND index_text IS NOT NULL;

-- Whoever writes or ends a version keeps both tables right, in the same transaction, without knowing of them.
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
-- A touch makes no version; who has remembered an expiry must hear of it.
CREATE TRIGGER version_touched AFTER UPDATE OF expires_at ON versions BEGIN
    UPDATE marks SET value = value + 1 WHERE name = 'touches';
END;
INSERT INTO marks VALUES ('touches', 0);

-- The embedder whose vectors are searched; a reindex changes it when the last vector of the new one is there.
CREATE TABLE serving (
    only     INTEGER PRIMARY KEY CHECK (only = 1),
    embedder TEXT NOT NULL
);
