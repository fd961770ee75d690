-- Version 7: writers take turns in the queue, and large texts are embedded in pieces. A turn is a position measured in
-- bytes: a writer's texts follow one another, and a new writer joins at the queue's current position.
ALTER TABLE to_index ADD COLUMN writer TEXT;                           -- who wrote it, as the version says
ALTER TABLE to_index ADD COLUMN size INTEGER NOT NULL DEFAULT 0;       -- bytes that have no vectors yet
ALTER TABLE to_index ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE to_index ADD COLUMN at_field INTEGER NOT NULL DEFAULT 0;   -- where the next piece begins: in which field
ALTER TABLE to_index ADD COLUMN at_window INTEGER NOT NULL DEFAULT 0;  -- and with which of its windows
CREATE INDEX to_index_by_turn ON to_index (turn) WHERE due IS NOT NULL;
CREATE INDEX to_index_by_writer ON to_index (writer, turn) WHERE due IS NOT NULL;
INSERT INTO marks VALUES ('turn', 0);  -- the turn that the line has come to

-- Vectors of the first pieces of a text, until all are computed: `vectors` has those of whole texts only.
CREATE TABLE pieces (
    id   INTEGER PRIMARY KEY,
    seq  INTEGER NOT NULL,
    body BLOB    NOT NULL
);
CREATE INDEX pieces_of ON pieces (seq);

UPDATE to_index SET writer = user, size = length(CAST(index_text AS BLOB)) FROM versions v WHERE v.seq = to_index.seq;
UPDATE to_index SET turn = line.turn FROM (
    SELECT seq, sum(size) OVER (PARTITION BY writer ORDER BY seq) - size AS turn FROM to_index) line
WHERE line.seq = to_index.seq;

DROP TRIGGER version_to_index;
CREATE TRIGGER version_to_index AFTER INSERT ON versions
WHEN NEW.index_text IS NOT NULL AND NEW.ended_at IS NULL BEGIN
    INSERT INTO to_index (seq, due, writer, size, turn)
    SELECT NEW.seq, 0, NEW.user, length(CAST(NEW.index_text AS BLOB)), max(value, coalesce((
        SELECT turn + size FROM to_index WHERE writer IS NEW.user AND due IS NOT NULL ORDER BY turn DESC LIMIT 1), 0))
    FROM marks WHERE name = 'turn';
END;
CREATE TRIGGER version_renamed AFTER UPDATE OF user ON versions BEGIN
    UPDATE to_index SET writer = NEW.user WHERE seq = NEW.seq;
END;
CREATE TRIGGER text_left_queue AFTER DELETE ON to_index BEGIN
    DELETE FROM pieces WHERE seq = OLD.seq;
END;
