"""Python runs this when a process starts that has this folder on its path: see `postgres_under_paths`."""

from tests.support.postgres_under_paths import install

install()
