"""Whether a request comes from this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from alcove.server.headers import Headers

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")


def is_local_program(address: str, headers: Headers) -> bool:
    """True for a program on this machine; false for a proxy, and for a browser that shows another site."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    if not (mapped or ip).is_loopback or any(name in headers for name in _FORWARDED):
        return False
    return has_loopback_host(headers) and has_loopback_origin(headers)


def has_loopback_host(headers: Headers) -> bool:
    """True if the header `Host` names this machine, or is missing."""
    return _is_loopback(f"//{headers.get(b'host', b'localhost').decode('latin-1')}")


def has_loopback_origin(headers: Headers) -> bool:
    """True if the header `Origin` names this machine, or is missing."""
    return _is_loopback(headers.get(b"origin", b"//localhost").decode("latin-1"))


@lru_cache(16)  # an entry may be as long as a request's headers may be
def _is_loopback(url: str) -> bool:
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:
        return False
