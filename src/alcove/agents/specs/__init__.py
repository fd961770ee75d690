"""The specs of agents, teams and knowledge sources, read from YAML files.

`records` defines the fields, `aliases.toml` their published spellings. `reader` translates files into our own
form, `validator` checks them, `loading` does both whenever a file changes, `catalogue` has the result.
"""
