"""What keeps a store healthy and movable: backup, wipe ledger, doctor, sweep, export and import."""
