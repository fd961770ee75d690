"""The panel at `/`: its files, and how a browser signs in to look at memories with it.

The panel calls the REST API like any client. A browser is signed in by a cookie that holds the token or key
it was given, out of the reach of scripts and never sent by other sites. What changes something must also
carry a token of the page's own, which another site can neither read nor guess.

Applications on neighbouring hosts and ports can plant cookies in the same browser. So a cookie's value
carries a MAC that only this store can make; and over HTTPS only the name `__Host-alcove_token` counts, which
browsers let no other host set. Another port of the same host can set it, to a session that its own user was
given here. A page notices by its token, which then matches no cookie; a page that is loaded anew has none,
and shows whose session it is.
"""

from __future__ import annotations

import hashlib
import hmac
from importlib.resources import files
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from alcove.api.operation import Operation
from alcove.core.errors import InvalidRequest, NotFound, PermissionDenied, Unauthenticated
from alcove.server.authentication import Authenticator, Headers, has_loopback_host
from alcove.server.routes import Endpoint, Page, Request

SECURE_COOKIE, PLAIN_COOKIE = b"__Host-alcove_token", b"alcove_token"
_MAC_BYTES = 64
COOKIE_KEY = "panel cookies"
"""What the key of the MAC in a cookie is derived for."""
OWN_TOKEN = b"x-alcove-csrf"
_KINDS = {"html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript"}
_LONGEST = 3800
"""Bytes of a token; browsers drop a cookie of more than 4096 in all, with its name and its MAC."""
_WHENCE = (b"host", b"origin")
"""The headers beside the token that decide whether somebody may sign in."""
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_TRUSTED_TYPES = b"; require-trusted-types-for 'script'"
DOCS_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"cache-control", b"no-cache"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),  # for browsers that do not know frame-ancestors
)
"""What each page tells a browser: run and load nothing but our own files, and stand in no frame.

Swagger UI sets `innerHTML` itself, so only the panel asks for Trusted Types.
"""
_PANEL_HEADERS = ((b"content-security-policy", _POLICY + _TRUSTED_TYPES), *DOCS_HEADERS[1:])


class SignIn(Struct, forbid_unknown_fields=True):
    """What a browser signs in with: a token, or an API key."""

    token: str


class SignedIn(Struct):
    """Who a browser is signed in as; what it writes must carry `csrf` in the header `X-Alcove-CSRF`."""

    user: str
    roles: list[str]
    csrf: str
    authentication: str


class SessionCookies:
    """Makes and reads the cookies of browsers that have signed in."""

    def __init__(self, key: bytes) -> None:
        """`key`: of the MAC; every process of a store has the same."""
        self._key = key

    def admit(self, request: Request) -> None:
        """Takes the cookie of a browser that has signed in for the token it holds."""
        headers = request.headers
        if b"cookie" not in headers or b"authorization" in headers or b"x-api-key" in headers:
            return
        if not (tokens := self.tokens(headers)):
            return
        page_token = headers.get(OWN_TOKEN, b"")
        matching = [each for each in tokens if hmac.compare_digest(own_token(each).encode(), page_token)]
        if page_token and not matching:
            raise Unauthenticated(
                "this page belongs to another session than the one that this browser holds: sign in again"
            )
        if not matching and request.method not in ("GET", "HEAD"):
            raise PermissionDenied("a browser that is signed in must send X-Alcove-CSRF with what it writes")
        if not matching and len(tokens) > 1:
            raise Unauthenticated(
                "this browser holds two sessions, and one may have been planted by another site: delete the "
                "cookies of this site and sign in again, over HTTPS if you can"
            )
        headers[b"authorization"] = b"Bearer " + (matching or tokens)[0].encode()

    def tokens(self, headers: Headers) -> list[str]:
        """The tokens in cookies that we made, each once; more than one only where one was planted."""
        cookies = headers.get(b"cookie", b"")
        found = self._ours(cookies, SECURE_COOKIE)
        return found if found or _is_https(headers) else self._ours(cookies, PLAIN_COOKIE)

    def _ours(self, cookies: bytes, name: bytes) -> list[str]:
        """Reads one name strictly, in linear time; whatever else a header holds is skipped."""
        found: dict[str, None] = {}
        for cookie in cookies.split(b";"):
            key, _, value = cookie.strip(b" \t").partition(b"=")
            mac, _, token = value.partition(b".")
            if key != name or len(mac) != _MAC_BYTES:
                continue
            if hmac.compare_digest(mac, self._mac(token)):
                found[unquote(token.decode("ascii"))] = None
        return [*found]

    def signing_in(self, token: str, headers: Headers) -> Page:
        """The answer that gives a browser its cookie."""
        value = quote(token, safe="").encode()
        name = SECURE_COOKIE if _is_https(headers) else PLAIN_COOKIE
        return Page(b"", status=204, headers=[_set_cookie(name, self._mac(value) + b"." + value)])

    def _mac(self, token: bytes) -> bytes:
        return hmac.digest(self._key, token, "sha256").hex().encode()


def _is_https(headers: Headers) -> bool:
    """Whether a browser reached us over HTTPS, which a proxy in front of us speaks.

    The origin or the proxy says so. Where neither does: browsers send `Sec-Fetch-Site` to nobody but loopback
    without it. A caller who lies here only changes which of their own cookies is read.
    """
    if headers.get(b"origin", b"").startswith(b"https:"):
        return True
    if headers.get(b"x-forwarded-proto", b"").partition(b",")[0].strip().lower() == b"https":
        return True
    return b"sec-fetch-site" in headers and not has_loopback_host(headers)


def _set_cookie(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """The header that gives a browser a cookie, or takes it away where the value is empty."""
    secure = b"; Secure" if name == SECURE_COOKIE else b""
    ends = b"" if value else b"; Max-Age=0"
    return b"set-cookie", name + b"=" + value + b"; Path=/; HttpOnly; SameSite=Strict" + secure + ends


def own_token(token: str) -> str:
    """What a page shows to prove that it is ours."""
    return hmac.new(token.encode(), b"alcove panel", hashlib.sha256).hexdigest()


class Panel:
    """The panel's own routes."""

    def __init__(self, authenticate: Authenticator, authentication: str, cookies: SessionCookies) -> None:
        """`authenticate`: says whose a token is. `authentication`: how callers say who they are."""
        self._authenticate, self._authentication = authenticate, authentication
        self._cookies = cookies
        every = files("alcove.panel").iterdir()
        self._files = {file.name: file.read_bytes() for file in every if file.is_file()}

    def endpoints(self) -> list[Endpoint]:
        """The page, its files, and signing in and out."""
        session = "/panel/session"
        sign_in = Operation[..., Any](None, f"POST {session}", request_record=SignIn, is_public=True)
        return [
            Endpoint(Operation(None, "GET /", is_public=True), self.page),
            Endpoint(Operation(None, "GET /panel/{name}", is_public=True), self.file),
            Endpoint(Operation(None, f"GET {session}", answer_record=SignedIn), self.signed_in),
            Endpoint(sign_in, self.sign_in),
            Endpoint(Operation(None, f"DELETE {session}", is_public=True), self.sign_out),
        ]

    async def page(self, _: Request) -> Page:
        return self._asset("index.html")

    async def file(self, request: Request) -> Page:
        return self._asset(request.path["name"])

    def _asset(self, name: str) -> Page:
        kind = _KINDS.get(name.rpartition(".")[2])
        if kind is None or name not in self._files:
            raise NotFound(f"the panel has no file {name[:100]}")
        return Page(self._files[name], kind, headers=_PANEL_HEADERS)

    async def signed_in(self, request: Request) -> SignedIn:
        who, tokens = request.principal, self._cookies.tokens(request.headers)
        bearer = request.headers.get(b"authorization", b"").removeprefix(b"Bearer ").decode("latin-1")
        csrf = own_token(bearer) if bearer in tokens else ""
        return SignedIn(who.user_id, [*who.roles], csrf, self._authentication)

    async def sign_in(self, request: Request) -> Page:
        token: str = request.parameters.token.strip()
        if not token.isascii() or not token.isprintable() or not 0 < len(quote(token)) <= _LONGEST:
            raise InvalidRequest("token", f"a token or an API key of at most {_LONGEST} bytes")
        sent = {name: value for name, value in request.headers.items() if name in _WHENCE}
        await self._authenticate({**sent, b"authorization": b"Bearer " + token.encode()})
        return self._cookies.signing_in(token, request.headers)

    async def sign_out(self, _: Request) -> Page:
        gone = [_set_cookie(name, b"") for name in (SECURE_COOKIE, PLAIN_COOKIE)]
        return Page(b"", status=204, headers=gone)
