"""The order of search hits, and how relevant each is."""
