"""Python runs this at the start of each process whose path of modules has its folder: see `under_a_path`."""

from tests.support.under_a_path import install

install()
