"""The panel in a real browser, as three people use it, and signing in to it."""
