"""The `alcove` command, on a file and on a URL."""
