"""The base that every part may import: errors, names, records, time, settings. It imports no other part."""

__version__ = "0.1.0"
