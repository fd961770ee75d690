"""Agents and teams: their specs, rooms, tools, conversations and knowledge."""
