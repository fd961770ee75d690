"""The specs of agents, teams and knowledge sources, read from YAML files.

`records` defines the fields, `aliases` the published spellings of them, `spec_set` reads files, `consistency`
checks that all specs fit together, `loading` follows changes of files, and `conversion` writes our own form.
"""
