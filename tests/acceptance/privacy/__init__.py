"""One person's data: what is held, and that nothing of it is left after a wipe."""
