"""Alcove inside the frameworks that agents are built with: one file each, which loads its framework."""
