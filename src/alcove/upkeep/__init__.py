"""What keeps a store healthy and movable: backup, wipe ledger, doctor, export and import."""
