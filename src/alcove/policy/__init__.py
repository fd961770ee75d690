"""Rego policies, evaluated in process on every call."""

from alcove.policy.rego import Bundle, Policy, ReadScope

__all__ = ["Bundle", "Policy", "ReadScope"]
