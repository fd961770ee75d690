"""Agents and teams: what their specs say, the rooms that follow, and who may enter them."""
