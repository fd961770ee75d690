"""Records that go into the engine and come out of it, by subject."""
