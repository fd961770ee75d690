"""Rego policies, evaluated in process on every call."""

from alcove.policy.rego import Bundle, Narrowed, Policy

__all__ = ["Bundle", "Narrowed", "Policy"]
