"""Finds memories by meaning and by words: embedders, candidate sources and ranking."""
