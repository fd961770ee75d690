"""Stores that are elsewhere."""
