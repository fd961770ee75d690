"""The HTTP API through a real socket, and the client that speaks it."""
