"""JSON Web Tokens, against a running service and an issuer on a port of its own."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from tests.support.issuer import Issuer, issuing
from tests.support.service import Service, alcove, assert_error, serving
from tests.support.tokens import FLAGS, SECRET, token
from tests.support.waiting import until

OTHER = "another secret, just as long, that the service has never seen"


def forged(header: dict[str, object], claims: dict[str, object], secret: bytes | None) -> str:
    """A token that no library would make."""
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims)]
    signed = b".".join(parts)
    seal = b"" if secret is None else hmac.new(secret, signed, hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(seal).rstrip(b"=")]).decode()


def hour() -> int:
    return int(time.time()) + 3600


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a shared secret, and no issuer or audience configured."""
    with serving(tmp_path_factory.mktemp("hs256"), *FLAGS) as service:
        yield service


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as one:
        yield one


@pytest.fixture(scope="module")
def published(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that takes its keys from the issuer's key set."""
    folder = tmp_path_factory.mktemp("jwks")
    with serving(folder, "--auth", "jwt", "--jwks-url", issuer.jwks_url) as service:
        yield service


def assert_unauthenticated(service: Service, given: str | None) -> str:
    answer = service.look(given)
    said = str(assert_error(answer, 401, "unauthenticated")["error"])
    assert answer.headers["www-authenticate"].startswith("Bearer")
    return said


def test_a_valid_token_reads_what_it_wrote(shared: Service) -> None:
    assert shared.put(["user", "alice"], "k", {"n": 1}, token()).status_code == 200
    assert shared.get(["user", "alice"], "k", token()).json()["value"] == {"n": 1}


@pytest.mark.parametrize(
    ("why", "claims"),
    [
        ("expired", {"exp": 1_000_000_000}),
        ("not yet valid", {"nbf": 4_000_000_000, "exp": 4_000_003_600}),
        ("never expires", {"exp": None}),
        ("no user", {"sub": None}),
        ("an empty user", {"sub": ""}),
        ("a user that is a number", {"sub": 7}),
        ("a user that is a list", {"sub": ["alice"]}),
        ("an expiry that is no time", {"exp": "soon"}),
        ("an expiry that is a list", {"exp": [1]}),
        ("a not-before that is no time", {"nbf": {}}),
    ],
)
def test_a_token_that_does_not_hold_is_refused(shared: Service, why: str, claims: dict[str, object]) -> None:
    assert_unauthenticated(shared, forged({"alg": "HS256", "typ": "JWT"}, _with(claims), SECRET.encode()))


def _with(claims: dict[str, object]) -> dict[str, object]:
    every = {"sub": "alice", "exp": hour(), **claims}
    return {name: value for name, value in every.items() if value is not None}


def test_an_expiry_in_digits_is_refused_or_taken_and_never_an_error_of_ours(shared: Service) -> None:
    given = forged({"alg": "HS256"}, _with({"exp": str(hour())}), SECRET.encode())
    assert shared.look(given).status_code in (200, 401)


def test_an_expiry_beyond_all_numbers_is_never_an_error_of_ours(shared: Service) -> None:
    given = forged({"alg": "HS256"}, _with({"exp": float("inf")}), SECRET.encode())
    assert shared.look(given).status_code in (200, 401)


def test_a_user_that_is_no_text_is_never_an_error_of_ours(shared: Service) -> None:
    given = forged({"alg": "HS256"}, _with({"sub": "\ud800"}), SECRET.encode())
    assert shared.look(given).status_code in (400, 401)


def test_a_user_too_long_for_a_namespace_is_told_which_claim_it_is(shared: Service) -> None:
    assert shared.look(token("é" * 509)).status_code == 200
    for path in ("namespaces", "events", "export", "history?ns=a&key=k"):
        answer = shared.call("GET", f"/v1/memories/{path}", token("x" * 2000))
        assert assert_error(answer, 400, "invalid_request")["details"]["field"] == "sub"


@pytest.mark.parametrize("given", ["x", "a.b.c", "é.é.é", "..", "null", token(secret=OTHER), token() + "x"])
def test_what_is_no_token_of_ours_is_refused(shared: Service, given: str) -> None:
    answer = shared.look(headers={"authorization": b"Bearer " + given.encode()})
    assert_error(answer, 401, "unauthenticated")


def test_no_token_another_scheme_and_a_key_in_the_query_are_refused(shared: Service) -> None:
    assert "bearer" in assert_unauthenticated(shared, None)
    assert_error(shared.look(headers={"authorization": f"Basic {token()}"}), 401, "unauthenticated")
    assert_error(shared.look(params={"access_token": token()}), 401, "unauthenticated")


def test_who_calls_is_asked_before_what_is_called_for(shared: Service) -> None:
    answer = shared.call("PUT", "/v1/memories", content=b"{broken", headers={"content-type": "text/plain"})
    assert_error(answer, 401, "unauthenticated")


def test_health_and_the_description_need_no_token(shared: Service) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        assert shared.call("GET", path).status_code == 200, path


def test_none_is_no_algorithm(shared: Service, published: Service, issuer: Issuer) -> None:
    for alg in ("none", "None", "NONE", ""):
        for service in (shared, published):
            header: dict[str, object] = {"alg": alg, "kid": issuer.rsa}
            assert_unauthenticated(service, forged(header, _with({}), None))
            assert_unauthenticated(service, forged(header, _with({}), SECRET.encode()))


def test_a_public_key_is_never_taken_for_a_secret(published: Service, issuer: Issuer) -> None:
    for kid in (issuer.rsa, issuer.ec):
        for secret in (issuer.public_pem(kid), issuer.public_pem(kid).strip()):
            given = forged({"alg": "HS256", "typ": "JWT", "kid": kid}, _with({}), secret)
            assert_unauthenticated(published, given)


def test_a_service_with_a_secret_takes_no_other_algorithm(shared: Service, issuer: Issuer) -> None:
    for given in (issuer.sign(issuer.rsa), issuer.sign(issuer.ec)):
        assert_unauthenticated(shared, given)
    longer = jwt.encode(_with({}), SECRET * 2, algorithm="HS512")
    assert_unauthenticated(shared, longer)


def test_a_key_of_another_kind_than_the_algorithm_is_refused(published: Service, issuer: Issuer) -> None:
    """The header says RS256 and names the EC key, and the other way round."""
    assert_unauthenticated(published, issuer.sign(issuer.rsa, named=issuer.ec))
    assert_unauthenticated(published, issuer.sign(issuer.ec, named=issuer.rsa))


def test_audience_and_issuer_are_not_asked_for_unless_configured(shared: Service) -> None:
    assert shared.look(token(aud="somebody", iss="anybody")).status_code == 200


def test_audience_and_issuer_are_checked_when_configured(tmp_path: Path) -> None:
    flags = [*FLAGS, "--jwt-issuer", "us", "--jwt-audience", "memory"]
    with serving(tmp_path, *flags) as service:
        assert service.look(token(iss="us", aud="memory")).status_code == 200
        assert service.look(token(iss="us", aud=["other", "memory"])).status_code == 200
        for wrong in ({}, {"iss": "us"}, {"aud": "memory"}, {"iss": "us", "aud": "x"}):
            assert_unauthenticated(service, token(**wrong))
        assert_unauthenticated(service, token(iss="them", aud="memory"))


def test_leeway_forgives_clocks_that_differ(tmp_path: Path) -> None:
    flags = [*FLAGS, "--jwt-leeway", 600]
    with serving(tmp_path, *flags) as service:
        now = int(time.time())
        assert service.look(token(exp=now - 30)).status_code == 200
        assert service.look(token(nbf=now + 30)).status_code == 200
        assert_unauthenticated(service, token(exp=now - 6000))
        assert_unauthenticated(service, token(nbf=now + 6000))


def test_the_user_may_be_in_another_claim_and_tokens_may_live_for_ever(tmp_path: Path) -> None:
    flags = [*FLAGS, "--jwt-user-claim", "email", "--no-jwt-require-exp"]
    with serving(tmp_path, *flags) as service:
        given = token(email="alice@example.org", exp=None)
        assert service.put(["user", "alice@example.org"], "k", {}, given).status_code == 200
        assert_error(service.put(["user", "alice"], "k", {}, given), 403, "permission_denied")
        assert_unauthenticated(service, token())


def test_a_remembered_token_is_refused_once_it_has_expired(shared: Service) -> None:
    given = token(exp=int(time.time()) + 4)
    assert shared.look(given).status_code == 200
    until(lambda: shared.look(given).status_code == 401)


def test_a_denied_call_says_why(shared: Service) -> None:
    for answer in (
        shared.put(["user", "bob"], "k", {}, token()),
        shared.get(["user", "bob"], "k", token()),
        shared.call("DELETE", "/v1/memories", token(), params={"ns": ["user", "bob"], "key": "k"}),
    ):
        assert assert_error(answer, 403, "permission_denied")["reason"]


def test_roles_count_only_as_a_list_of_strings(shared: Service) -> None:
    assert shared.put(["user", "carol"], "k", {}, token("carol")).status_code == 200
    for roles, sees in ((["admin"], True), ("admin", False), ([], False), (["admin", 7], False)):
        params = {"prefix": ["user", "carol"]}
        found = shared.look(token("root", roles=roles), params=params).json()["namespaces"]
        assert (found == [["user", "carol"]]) is sees, roles


@pytest.mark.parametrize("claim", ["realm_access.roles", "https://alcove.example/roles"])
def test_roles_may_be_in_another_claim(tmp_path: Path, claim: str) -> None:
    """By a dotted path into objects, as Keycloak has them, or by a name with dots in it, as Auth0 has."""
    nested = claim == "realm_access.roles"
    with serving(tmp_path, *FLAGS, "--jwt-roles-claim", claim) as service:
        assert service.put(["user", "carol"], "k", {}, token("carol")).status_code == 200
        for roles, sees in ((["admin"], True), ("admin", False), (["admin", 7], False), (None, False)):
            claims = {"realm_access": {"roles": roles}} if nested else {claim: roles}
            given = token("root", **claims)
            found = service.look(given, params={"prefix": ["user", "carol"]}).json()["namespaces"]
            assert (found == [["user", "carol"]]) is sees, roles
            assert (service.call("GET", "/v1/admin/stats", given).status_code == 200) is sees
        for elsewhere in ({"roles": ["admin"]}, {"realm_access": ["admin"]}, {"realm_access": "roles"}):
            assert_error(service.call("GET", "/v1/admin/stats", token(**elsewhere)), 403, "permission_denied")


@pytest.mark.parametrize(
    "pair",
    [("a:b", "a"), ("%", "%25"), ("a/b", "a%2Fb"), ("zoë", "zoe\u0308"), ("a\0b", "a"), ("𝒜", "A"),
     ("*", "a"), ("..", "."), (" a", "a"), ("u", "user"), ("a\x1fb", "a"), ("Alice", "alice"), ("_", "a")],
)  # fmt: skip
def test_users_are_isolated_whatever_their_ids_are_made_of(shared: Service, pair: tuple[str, str]) -> None:
    for me, them in (pair, pair[::-1]):
        mine, theirs = token(me), token(them)
        assert shared.put(["user", me], "secret", {"of": me}, mine).status_code == 200
        assert shared.get(["user", me], "secret", mine).json()["value"] == {"of": me}
        assert_error(shared.get(["user", me], "secret", theirs), 403, "permission_denied")
        search = {"namespace_prefix": [], "limit": 100}
        found = shared.call("POST", "/v1/memories/search", theirs, json=search).json()["items"]
        assert {each["namespace"][1] for each in found} <= {them}
        assert all(place[1] == them for place in shared.look(theirs).json()["namespaces"])


def test_the_token_command_makes_a_token_that_works(shared: Service) -> None:
    made = alcove("token", "--user", "dora", "--role", "admin", "--jwt-secret", SECRET)
    assert made.returncode == 0, made.stderr
    assert shared.put(["user", "dora"], "k", {"n": 1}, made.stdout.strip()).status_code == 200
    assert jwt.decode(made.stdout.strip(), SECRET, ["HS256"])["roles"] == ["admin"]
    by_variable = alcove("token", "--user", "dora", env={"ALCOVE_JWT_SECRET": SECRET})
    assert shared.look(by_variable.stdout.strip()).status_code == 200


def test_the_token_command_makes_no_token_that_would_be_refused() -> None:
    assert alcove("token", "--user", "", "--jwt-secret", SECRET).returncode == 2
    without = alcove("token", "--user", "dora")
    assert without.returncode == 2
    assert "--jwt-secret" in without.stderr
