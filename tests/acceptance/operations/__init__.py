"""Running a store: configuration, workers, metrics, backup and restore, upkeep."""
