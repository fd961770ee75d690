"""The specs of agents, teams and knowledge sources, read from YAML files.

`records` defines the fields and the catalogue of all specs, `aliases.toml` their published spellings, and
`templates` the rooms they name. `reader` translates files into our own form, `validator` checks them, and
`loading` does both whenever a file changes.
"""
