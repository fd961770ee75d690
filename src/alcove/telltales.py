"""Texts that look like secrets: passwords and keys that an agent should not have remembered."""

from __future__ import annotations

import re

_PATTERNS = {
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "an AWS key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a JSON Web Token": r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{16,}",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22,})",
    "a GitLab token": r"\bglpat-[\w-]{20}",
    "a Slack token": r"\bxox[abeoprs]-[\w-]{10,}",
    "a Google API key": r"\bAIza[\w-]{35}",
    "a Stripe key": r"\b[sr]k_live_[A-Za-z0-9]{16,}",
    "an Anthropic or OpenAI key": r"\bsk-[A-Za-z][\w-]{18,}|\bsk-[A-Za-z0-9]{32,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a package registry token": r"\b(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,})",
    "an Alcove API key": r"\balcove_[0-9a-f]{12}_[\w-]{40,}",
    "a password in a URL": r"\b[a-z][a-z0-9+.-]*://[^\s/:@\"]+:[^\s/@\"]{3,}@",
    # `password=…`, `"api_key": "…"`; a placeholder such as <password> or *** is none.
    "a password": r"(?i:(?:\b|_)(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?token))"
    r"\\?\"?\s*[:=]\s*(?!null|true|false|none)\\?[\"']?[^\s\"'\\<*$\[{(,;]{4,}",
}
_ANY = re.compile("|".join(f"({pattern})" for pattern in _PATTERNS.values()))
_KINDS = tuple(_PATTERNS)


def telltales(text: str) -> set[str]:
    """The kinds of secret that a text seems to hold; never the secret itself."""
    return {_KINDS[found.lastindex - 1] for found in _ANY.finditer(text) if found.lastindex}
