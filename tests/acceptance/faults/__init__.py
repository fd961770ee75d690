"""Kills, full disks, damaged files, many processes at once: what is promised still holds."""
