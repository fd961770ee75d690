"""The panel at `/`: its files, and how a browser signs in.

The panel calls the REST API like any client. A cookie signs the browser in: it holds the user's token or API
key, scripts cannot read it, and requests of other sites do not carry it. A request that writes must also
carry the page's own token, which another site can neither read nor guess.

Applications on neighbouring hosts and ports can plant cookies in the same browser. So a cookie's value
carries a MAC that only this store can make, and over HTTPS only the cookie `__Host-alcove_token` counts,
which no other host can set. Another port of the same host can plant a valid session of its own user. An open
page notices that, because its token then matches no cookie; a page that is loaded later has no token yet, and
shows whose session it is.
"""

from __future__ import annotations

import hashlib
import hmac
from importlib.resources import files
from urllib.parse import quote, unquote

from msgspec import Struct

from alcove.core.errors import InvalidRequest, NotFound, PermissionDenied, Unauthenticated
from alcove.server.authentication import Authenticator, Headers, has_loopback_host
from alcove.server.routes import Endpoint, Page, Request, endpoint

SECURE_COOKIE, PLAIN_COOKIE = b"__Host-alcove_token", b"alcove_token"
_MAC_BYTES = 64
COOKIE_KEY = "panel cookies"
"""The purpose from which the key of the cookies' MAC is derived."""
CSRF_HEADER = b"x-alcove-csrf"
_KINDS = {"html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript"}
_MAX_TOKEN_BYTES = 3800
"""Browsers drop a cookie of more than 4096 bytes, including its name and its MAC."""
_SIGN_IN_HEADERS = (b"host", b"origin")
"""The headers that decide, together with the token, whether a browser may sign in."""
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
"""Headers of each page: browsers run and load only our own files, and show no page in a frame.

Swagger UI sets `innerHTML` itself, so only the panel asks for Trusted Types.
"""
_PANEL_HEADERS = ((b"content-security-policy", _POLICY + _TRUSTED_TYPES), *DOCS_HEADERS[1:])


class SignIn(Struct, forbid_unknown_fields=True):
    """The token or API key with which a browser signs in."""

    token: str


class SignedIn(Struct):
    """The user of a browser's session; its writes must carry `csrf` in the header `X-Alcove-CSRF`."""

    user: str
    roles: list[str]
    csrf: str
    authentication: str


class SessionCookies:
    """Makes and reads the cookies of browsers that have signed in."""

    def __init__(self, key: bytes) -> None:
        """`key`: of the MAC; all processes of a store have the same."""
        self._key = key

    def admit(self, request: Request) -> None:
        """Adds the token of a browser's cookie to its headers, as if the request had sent it."""
        headers = request.headers
        if b"authorization" in headers or b"x-api-key" in headers or not (tokens := self.tokens(headers)):
            return
        page_token = headers.get(CSRF_HEADER, b"")
        matching = [each for each in tokens if hmac.compare_digest(csrf_token(each).encode(), page_token)]
        if page_token and not matching:
            raise Unauthenticated(
                "this page belongs to another session than the browser's cookie: sign in again"
            )
        if not matching and request.method not in ("GET", "HEAD"):
            raise PermissionDenied(
                "a browser that is signed in must send the header X-Alcove-CSRF with each write"
            )
        if not matching and len(tokens) > 1:
            raise Unauthenticated(
                "this browser holds two sessions, and one may have been planted by another site: delete the "
                "cookies of this site and sign in again, over HTTPS if you can"
            )
        headers[b"authorization"] = b"Bearer " + (matching or tokens)[0].encode()

    def tokens(self, headers: Headers) -> list[str]:
        """The tokens in cookies that this store made, each once; more than one only if one was planted."""
        cookies = headers.get(b"cookie", b"")
        tokens = self._verified_tokens(cookies, SECURE_COOKIE)
        return tokens if tokens or _is_https(headers) else self._verified_tokens(cookies, PLAIN_COOKIE)

    def _verified_tokens(self, cookies: bytes, name: bytes) -> list[str]:
        """The tokens of valid cookies of this name; skips anything else, in linear time."""
        tokens: dict[str, None] = {}
        for cookie in cookies.split(b";"):
            key, _, value = cookie.strip(b" \t").partition(b"=")
            mac, _, token = value.partition(b".")
            if key != name or len(mac) != _MAC_BYTES:
                continue
            if hmac.compare_digest(mac, self._mac(token)):
                tokens[unquote(token.decode("ascii"))] = None
        return [*tokens]

    def sign_in_page(self, token: str, headers: Headers) -> Page:
        """The answer that gives a browser its cookie."""
        value = quote(token, safe="").encode()
        name = SECURE_COOKIE if _is_https(headers) else PLAIN_COOKIE
        return Page(b"", status=204, headers=[_set_cookie(name, self._mac(value) + b"." + value)])

    def _mac(self, token: bytes) -> bytes:
        return hmac.digest(self._key, token, "sha256").hex().encode()


def _is_https(headers: Headers) -> bool:
    """Whether the browser uses HTTPS, which a proxy in front of the server terminates.

    `Origin` or the proxy's header says so. If neither is there, browsers send `Sec-Fetch-Site` over HTTPS,
    and over HTTP only to loopback. A caller who lies here only changes which of their own cookies is read.
    """
    if headers.get(b"origin", b"").startswith(b"https:"):
        return True
    if headers.get(b"x-forwarded-proto", b"").partition(b",")[0].strip().lower() == b"https":
        return True
    return b"sec-fetch-site" in headers and not has_loopback_host(headers)


def _set_cookie(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """The header that sets a cookie, or removes it if the value is empty."""
    secure = b"; Secure" if name == SECURE_COOKIE else b""
    ends = b"" if value else b"; Max-Age=0"
    return b"set-cookie", name + b"=" + value + b"; Path=/; HttpOnly; SameSite=Strict" + secure + ends


def csrf_token(token: str) -> str:
    """The token that proves that a request comes from our own page."""
    return hmac.new(token.encode(), b"alcove panel", hashlib.sha256).hexdigest()


class Panel:
    """The panel's own routes."""

    def __init__(self, authenticate: Authenticator, authentication: str, cookies: SessionCookies) -> None:
        """`authentication`: the value of `--auth`, which the panel shows."""
        self._authenticate, self._authentication = authenticate, authentication
        self._cookies = cookies
        self._files = {
            file.name: file.read_bytes() for file in files("alcove.panel").iterdir() if file.is_file()
        }

    def endpoints(self) -> list[Endpoint]:
        """The page, its files, and signing in and out."""
        session = "/panel/session"
        return [
            endpoint("GET /", self.page, is_public=True),
            endpoint("GET /panel/{name}", self.file, is_public=True),
            endpoint(f"GET {session}", self.signed_in, answer_record=SignedIn),
            endpoint(f"POST {session}", self.sign_in, request_record=SignIn, is_public=True),
            endpoint(f"DELETE {session}", self.sign_out, is_public=True),
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
        principal, tokens = request.principal, self._cookies.tokens(request.headers)
        bearer = request.headers.get(b"authorization", b"").removeprefix(b"Bearer ").decode("latin-1")
        csrf = csrf_token(bearer) if bearer in tokens else ""
        return SignedIn(principal.user_id, [*principal.roles], csrf, self._authentication)

    async def sign_in(self, request: Request) -> Page:
        token: str = request.parameters.token.strip()
        if not token.isascii() or not token.isprintable() or not 0 < len(quote(token)) <= _MAX_TOKEN_BYTES:
            raise InvalidRequest("token", f"a token or an API key of at most {_MAX_TOKEN_BYTES} bytes")
        headers = {name: value for name, value in request.headers.items() if name in _SIGN_IN_HEADERS}
        await self._authenticate({**headers, b"authorization": b"Bearer " + token.encode()})
        return self._cookies.sign_in_page(token, request.headers)

    async def sign_out(self, _: Request) -> Page:
        headers = [_set_cookie(name, b"") for name in (SECURE_COOKIE, PLAIN_COOKIE)]
        return Page(b"", status=204, headers=headers)
