-- Version 6: an imported memory keeps the time when it was first written, next to the log's own time.
ALTER TABLE versions ADD COLUMN original_at INTEGER;  -- earlier than created_at; NULL where it was written here
