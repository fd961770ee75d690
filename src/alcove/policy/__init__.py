"""Rego policies, evaluated in process on every call."""

from alcove.policy.rego import Narrowed, Policy
from alcove.policy.rules import Bundle

__all__ = ["Bundle", "Narrowed", "Policy"]
