-- Version 10: what a large subtree is searched by at first, so that neither its texts nor its vectors need be read. It is
-- made of both, by the indexer, and can be made again.
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

-- Whose vectors that is of, how many numbers one has, and up to which of `vectors`.
CREATE TABLE searchable (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    embedder   TEXT    NOT NULL,
    dimensions INTEGER NOT NULL,
    upto       INTEGER NOT NULL
);
