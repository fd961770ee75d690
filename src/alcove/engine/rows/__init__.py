"""What goes into the engine and comes out of it, by what it is about: records without behaviour."""
