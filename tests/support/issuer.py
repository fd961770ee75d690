"""An issuer of tokens on a port of its own: keys that it publishes, rotates, and can stop publishing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


class Issuer:
    """Serves a key set and its discovery document, and signs with the keys of the set."""

    def __init__(self) -> None:
        self.private: dict[str, PrivateKey] = {}
        self.asked: list[str] = []
        """The paths that were asked for, in order."""
        self.broken: bytes | None = None
        """What it answers instead of the truth."""
        self._made = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._answerer())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.jwks_url = f"{self.url}/keys"
        self.rsa = self.ec = ""
        self.rotate()

    def rotate(self) -> None:
        """Throws its keys away and publishes new ones, under new names."""
        self._made += 1
        self.rsa, self.ec = f"rsa-{self._made}", f"ec-{self._made}"
        self.private = {
            self.rsa: rsa.generate_private_key(65537, 2048),
            self.ec: ec.generate_private_key(ec.SECP256R1()),
        }

    def sign(self, kid: str | None = None, *, named: str | None = None, **claims: object) -> str:
        """A token with these claims, signed with one of its keys (RSA unless told), valid for an hour."""
        kid = kid or self.rsa
        key = self.private[kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        body = {"sub": "alice", "iss": self.url, "exp": int(time.time()) + 3600, **claims}
        return jwt.encode(body, key, algorithm=algorithm, headers={"kid": named or kid})

    def public_pem(self, kid: str) -> bytes:
        """What everybody may know of a key."""
        return self.private[kid].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def fetches(self) -> int:
        """How often the key set was asked for."""
        return self.asked.count("/keys")

    def go_away(self) -> None:
        """Stops listening; whoever connects is refused."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _published(self, path: str) -> dict[str, Any] | None:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": self.jwks_url}
        if path == "/keys":
            return {"keys": [_jwk(kid, key) for kid, key in self.private.items()]}
        return None

    def _answerer(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Answerer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                found = issuer._published(self.path)
                body = issuer.broken if issuer.broken is not None else json.dumps(found).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Answerer


@contextmanager
def issuing() -> Iterator[Issuer]:
    """An issuer for the length of a `with`."""
    issuer = Issuer()
    try:
        yield issuer
    finally:
        issuer.go_away()


def _jwk(kid: str, key: PrivateKey) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        public, alg = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "RS256"
    else:
        public, alg = ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "ES256"
    return {**public, "kid": kid, "use": "sig", "alg": alg}
