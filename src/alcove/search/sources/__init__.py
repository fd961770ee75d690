"""Where the candidates of a search come from."""
