"""Rego policies, evaluated in process on every call."""

from alcove.policy.bundle import Bundle
from alcove.policy.rego import Narrowed, Policy

__all__ = ["Bundle", "Narrowed", "Policy"]
