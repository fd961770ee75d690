"""Engines: the interface in `base`, SQLite beside it, their SQL in `sql/`."""
