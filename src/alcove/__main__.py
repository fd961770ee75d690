"""`python -m alcove`: the command line."""

from alcove.cli import main

main(prog_name="alcove")
