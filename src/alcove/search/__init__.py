"""Finding memories by meaning and by words: embedders, and ranking that knows no store."""
