"""What every part may import: errors, names, records, time, settings; it imports nothing of the rest."""
