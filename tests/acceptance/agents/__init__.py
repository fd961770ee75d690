"""Agents and their rooms: what a tool call does, and what it cannot do."""
