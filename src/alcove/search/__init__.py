"""Searches memories by meaning and words: embedders, candidate sources and ranking."""
