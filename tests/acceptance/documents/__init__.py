"""The README, the pages and the examples: what they show is what happens."""
