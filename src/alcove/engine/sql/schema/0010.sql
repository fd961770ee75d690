-- Version 10: the quantised index, which large subtrees are searched by first, so that neither texts nor vectors need
-- be read. The indexer builds it from both, and can build it again.
CREATE TABLE terms (
    ns      BLOB    NOT NULL,
    seq     INTEGER NOT NULL,  -- a live version that has vectors
    terms   BLOB    NOT NULL,  -- the words of its texts as numbers of 32 bits
    rounded BLOB    NOT NULL,  -- its vectors, a byte a number
    PRIMARY KEY (ns, seq)
) WITHOUT ROWID;
CREATE TRIGGER searched_version_ended AFTER UPDATE OF ended_at ON versions
WHEN NEW.ended_at IS NOT NULL AND OLD.index_text IS NOT NULL BEGIN
    DELETE FROM terms WHERE ns = OLD.ns AND seq = OLD.seq;
END;
CREATE TRIGGER searched_version_gone AFTER DELETE ON versions WHEN OLD.index_text IS NOT NULL BEGIN
    DELETE FROM terms WHERE ns = OLD.ns AND seq = OLD.seq;
END;

-- The embedder of these vectors, their dimensions, and up to which entry of `vectors` they go.
CREATE TABLE searchable (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    embedder   TEXT    NOT NULL,
    dimensions INTEGER NOT NULL,
    upto       INTEGER NOT NULL
);
