"""Agents, teams and knowledge sources as YAML files describe them.

`records` says what can be written, `aliases` which published spellings are read too, `reading` checks a file,
`consistency` checks that all specs fit together, and `loading` follows files.
"""
