"""The HTTP edge: translates between REST and the one road, and decides nothing."""
