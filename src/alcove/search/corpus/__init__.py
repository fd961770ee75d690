"""The memories of one scope, in memory, as ranking reads them: words, vectors, tokens and order."""
