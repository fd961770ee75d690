"""The engine: an ordered log of versions, its index and its erasure, over one database; SQL in `sql/`."""
