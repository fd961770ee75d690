-- Version 5: records changes of expiry, so that a cached subtree reads again only what changed.
CREATE TABLE touches (
    id  INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order in which expiries changed, for who has read up to one
    seq INTEGER NOT NULL UNIQUE             -- the live version whose expiry it is
);
DROP TRIGGER version_touched;
CREATE TRIGGER version_touched AFTER UPDATE OF expires_at ON versions BEGIN
    INSERT OR REPLACE INTO touches (seq) VALUES (NEW.seq);
END;
CREATE TRIGGER touched_version_ended AFTER UPDATE OF ended_at ON versions WHEN NEW.ended_at IS NOT NULL BEGIN
    DELETE FROM touches WHERE seq = OLD.seq;
END;
CREATE TRIGGER touched_version_gone AFTER DELETE ON versions BEGIN
    DELETE FROM touches WHERE seq = OLD.seq;
END;
-- Rooms that were emptied without an entry in the log.
UPDATE marks SET name = 'clears' WHERE name = 'touches';
