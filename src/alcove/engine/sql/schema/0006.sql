-- Version 6: an imported memory keeps the time it was first written, beside the log's own.
ALTER TABLE versions ADD COLUMN original_at INTEGER;  -- earlier than created_at; NULL where it was written here
