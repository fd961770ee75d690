"""A call that waits for a provider ends when it is cancelled, over TCP and over TLS."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from alcove.core.cancellation import Cancellation
from alcove.llm.connections import ConnectionPool
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, with its key in the same file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(params=["http", "https"])
def silent(request: pytest.FixtureRequest, certificate: Path) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a provider that never answers, and what it was sent."""
    requests: list[bytes] = []
    listener = socket.create_server(("localhost", 0))
    if request.param == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listener = context.wrap_socket(listener, server_side=True)

    def accept() -> None:
        connection, _ = listener.accept()
        with closing(connection):
            requests.append(connection.recv(65536))
            connection.recv(65536)  # until the caller is gone

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"{request.param}://localhost:{listener.getsockname()[1]}", requests
    thread.join(PATIENCE)
    listener.close()


@pytest.mark.parametrize("by", ["cancellation", "close"])
def test_a_call_that_waits_for_an_answer_is_cut_off(
    silent: tuple[str, list[bytes]], certificate: Path, by: str
) -> None:
    url, requests = silent
    verify = ssl.create_default_context(cafile=str(certificate))
    pool = ConnectionPool(lambda hooks: httpx.Client(verify=verify, event_hooks=hooks, trust_env=False))
    errors: list[Exception] = []

    def call() -> None:
        with pool.client() as client:
            try:
                client.get(url, timeout=None)
            except httpx.HTTPError as error:
                errors.append(error)

    work = Cancellation()
    caller = threading.Thread(target=work.run, args=(call,), daemon=True)
    caller.start()
    until(lambda: requests)
    cut: Callable[[], object] = work.cancel if by == "cancellation" else pool.close
    cut()
    caller.join(PATIENCE)
    assert not caller.is_alive()
    assert len(errors) == 1
