"""Envelope encryption: values under data keys, data keys under the operator's key."""

from alcove.vault.providers import EnvironmentKey, KeyFile, KeyProvider, MemoryKey, default_keys
from alcove.vault.vault import Rotation, SubjectKey, Vault, subject_of, user_subject

__all__ = [
    "EnvironmentKey",
    "KeyFile",
    "KeyProvider",
    "MemoryKey",
    "Rotation",
    "SubjectKey",
    "Vault",
    "default_keys",
    "subject_of",
    "user_subject",
]
