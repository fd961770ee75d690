"""Texts that look like secrets: passwords and keys that an agent should not have remembered.

Every repetition that a match can fail after is bounded: a memory must not be able to hold the doctor up.
"""

from __future__ import annotations

import re

_PATTERNS = {
    "a private key": (["private key"], r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
    "an AWS key": (["akia", "asia"], r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a JSON Web Token": ([".eyj"], r"\beyJ[\w-]{8,400}\.eyJ[\w-]{8,4000}\.[\w-]{16}"),
    "a GitHub token": (
        ["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{22})",
    ),
    "a GitLab token": (["glpat-"], r"\bglpat-[\w-]{20}"),
    "a Slack token": (["xox"], r"\bxox[abeoprs]-[\w-]{10}"),
    "a Google API key": (["aiza"], r"\bAIza[\w-]{35}"),
    "a Stripe key": (["k_live_"], r"\b[sr]k_live_[A-Za-z0-9]{16}"),
    "an Anthropic or OpenAI key": (
        ["sk-"],
        r"\bsk-(?:ant|proj|svcacct|admin)-[\w-]{16}|\bsk-[A-Za-z0-9]{32}",
    ),
    "a Hugging Face token": (["hf_"], r"\bhf_[A-Za-z0-9]{30}"),
    "a package registry token": (["npm_", "pypi-"], r"\b(?:npm_[A-Za-z0-9]{36}|pypi-[\w-]{50})"),
    "an Alcove API key": (["alcove_"], r"\balcove_[0-9a-f]{12}_[\w-]{40}"),
    "a password in a URL": (["://"], r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"]{1,60}:[^\s/@\"]{3,100}@"),
    # `password=…`, `"api_key": "…"`; a placeholder such as <password> or *** is none.
    "a password": (
        ["passw", "passphrase", "pwd", "secret", "api", "access"],
        r"(?i:(?:\b|_)(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?token))"
        r"\\?\"?\s{0,9}[:=]\s{0,9}(?!null|true|false|none)\\?[\"']?[^\s\"'\\<*$\[{(,;]{4,}",
    ),
}
_COMPILED = [(kind, hints, re.compile(pattern)) for kind, (hints, pattern) in _PATTERNS.items()]


def telltales(text: str) -> set[str]:
    """The kinds of secret that a text seems to hold; never the secret itself."""
    lowered = text.lower()  # few texts have a hint, and to look for one costs a fraction of the pattern
    return {
        kind
        for kind, hints, pattern in _COMPILED
        if any(hint in lowered for hint in hints) and pattern.search(text)
    }
