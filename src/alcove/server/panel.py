"""The panel at `/`: its files, and how a browser signs in to look at memories with it.

The panel calls the REST API like any client. A browser is signed in by a cookie that holds the token or key
it was given, out of the reach of scripts and never sent by other sites. What changes something must also
carry a token of the page's own, which another site can neither read nor guess.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from urllib.parse import quote, unquote

from msgspec import Struct

from alcove.core.errors import InvalidRequest, NotFound, PermissionDenied
from alcove.server.auth import Authenticator
from alcove.server.routes import Page, Request, Resource

COOKIE = "alcove_token"
OWN_TOKEN = b"x-alcove-csrf"
_KINDS = {"html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript"}
_LONGEST = 3800
"""Bytes of a token; browsers drop a cookie of more than 4096 in all."""
_GUARDED = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"cache-control", b"no-cache"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class SignIn(Struct, forbid_unknown_fields=True):
    """What a browser signs in with: a token, or an API key."""

    token: str


class SignedIn(Struct):
    """Who a browser is signed in as; what it writes must carry `csrf` in the header `X-Alcove-CSRF`."""

    user: str
    roles: list[str]
    csrf: str
    authentication: str


def admit(request: Request) -> None:
    """Takes the cookie of a browser that has signed in for the token it holds."""
    headers = request.headers
    if b"cookie" not in headers or b"authorization" in headers or b"x-api-key" in headers:
        return
    if not (token := _held(headers[b"cookie"])):
        return
    shown = headers.get(OWN_TOKEN, b"").decode("latin-1")
    if request.method not in ("GET", "HEAD") and not hmac.compare_digest(shown, own_token(token)):
        raise PermissionDenied("a browser that is signed in must send X-Alcove-CSRF with what it writes")
    headers[b"authorization"] = b"Bearer " + token.encode()


def own_token(token: str) -> str:
    """What a page shows to prove that it is ours."""
    return hmac.new(token.encode(), b"alcove panel", hashlib.sha256).hexdigest()


class Panel:
    """The panel's own routes."""

    def __init__(self, authenticate: Authenticator, authentication: str) -> None:
        """`authenticate`: says whose a token is. `authentication`: how callers say who they are."""
        self._authenticate, self._authentication = authenticate, authentication
        every = files("alcove.panel").iterdir()
        self._files = {file.name: file.read_bytes() for file in every if file.is_file()}

    def resources(self) -> list[Resource]:
        """The page, its files, and signing in and out."""
        at = "/panel/session"
        return [
            Resource(name="panel", path="/", handler=self.page, open=True),
            Resource(name="panel_file", path="/panel/{name}", handler=self.file, open=True),
            Resource(name="signed_in", path=at, handler=self.signed_in, answer=SignedIn),
            Resource(name="sign_in", method="POST", path=at, body=SignIn, handler=self.sign_in, open=True),
            Resource(name="sign_out", method="DELETE", path=at, handler=self.sign_out, open=True),
        ]

    async def page(self, _: Request) -> Page:
        return self._asset("index.html")

    async def file(self, request: Request) -> Page:
        return self._asset(request.path["name"])

    def _asset(self, name: str) -> Page:
        kind = _KINDS.get(name.rpartition(".")[2])
        if kind is None or name not in self._files:
            raise NotFound(f"the panel has no file {name[:100]}")
        return Page(self._files[name], kind, headers=_GUARDED)

    async def signed_in(self, request: Request) -> SignedIn:
        who, token = request.principal, _held(request.headers.get(b"cookie", b""))
        return SignedIn(who.user_id, [*who.roles], own_token(token) if token else "", self._authentication)

    async def sign_in(self, request: Request) -> Page:
        token: str = request.asked.token.strip()
        if not token.isascii() or not token.isprintable() or not 0 < len(quote(token)) <= _LONGEST:
            raise InvalidRequest("token", f"a token or an API key of at most {_LONGEST} bytes")
        sent = {b"authorization": b"Bearer " + token.encode()}
        await self._authenticate(request.headers | sent)
        secure = "; Secure" if request.headers.get(b"origin", b"").startswith(b"https:") else ""
        return _with_cookie(quote(token, safe=""), secure)

    async def sign_out(self, _: Request) -> Page:
        return _with_cookie("", "; Max-Age=0")


def _with_cookie(value: str, more: str) -> Page:
    cookie = f"{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{more}"
    return Page(b"", status=204, headers=[(b"set-cookie", cookie.encode())])


def _held(cookies: bytes) -> str:
    """The token in a browser's cookies; nothing where there is none."""
    try:
        found = SimpleCookie(cookies.decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    token = unquote(found.value) if found else ""
    return token if token.isascii() and token.isprintable() else ""
