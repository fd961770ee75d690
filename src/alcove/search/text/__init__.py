"""Texts as words, terms and dates."""
