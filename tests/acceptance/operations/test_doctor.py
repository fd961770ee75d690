"""The doctor: says what it checked, tells damage from what is merely odd, and shows no content."""

from __future__ import annotations

from pathlib import Path

import pytest

from alcove import Alcove, Examination
from alcove.upkeep.doctor import kinds_of_secret
from tests.support.store_inspection import assert_sound, query

AL = ("user", "al")
SECRETS = {
    "a private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA",
    "an AWS key": "it is AKIAIOSFODNN7EXAMPLE, keep it",
    "a JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.dGhpcyBpcyBubyBzaWduYXR1cmU",
    "a GitHub token": "ghp_" + "a1B2" * 9,
    "a GitLab token": "glpat-" + "a1B2" * 5,
    "a Slack token": "xoxb-123456789012-abcdef",
    "a Google API key": "AIza" + "a1B2c" * 7,
    "a Stripe key": "sk_live_" + "a1B2" * 6,
    "an Anthropic or OpenAI key": "sk-ant-api03-" + "a1B2" * 6,
    "a Hugging Face token": "hf_" + "aBcD" * 9,
    "a package registry token": "npm_" + "a1B2" * 9,
    "an Alcove API key": "alcove_0123456789ab_" + "a1B2" * 11,
    "a password in a URL": "postgres://app:hunter22@db.example/app",
    "a password": "password=hunter22",
}


def found(memory: Alcove, name: str) -> Examination:
    (examination,) = [each for each in memory.doctor() if each.name == name]
    return examination


def test_a_healthy_store_gets_every_check_with_its_advice(memory: Alcove) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.as_user("bob").put(("user", "bob"), "key", {"n": 1})
    memory.wipe("bob")
    examinations = list(memory.doctor())
    assert [each for each in examinations if each.wrong or each.noticed] == []
    assert all(each.advice for each in examinations)
    assert len(examinations) == len({each.name for each in examinations}) > 10


@pytest.mark.parametrize("kind", SECRETS)
def test_a_memory_that_looks_like_a_secret_is_named_and_not_shown(memory: Alcove, kind: str) -> None:
    secret = SECRETS[kind]
    memory.as_user("al").put(AL, "key", {"deep": [{"note": secret}]})
    memory.as_user("al").put((*AL, "indexed"), "key", {"n": 1}, index={"text": secret})
    memory.as_user("al").put(AL, "harmless", {"note": "the password is in the safe; ask for a token"})
    examination = found(memory, "no memory looks like a secret")
    assert examination.noticed == [f"user:al 'key': {kind}", f"user:al:indexed 'key': {kind}"]
    assert examination.wrong == []
    assert secret not in repr(list(memory.doctor()))
    assert_sound(memory)


def test_a_secret_that_is_a_name_is_not_shown_either(memory: Alcove) -> None:
    secret = SECRETS["an AWS key"].split()[2].strip(",")
    memory.as_user("al").put((*AL, secret), secret, {"n": 1})
    memory.as_user("al").put((*AL, secret), "other", {"n": 1})
    assert found(memory, "no memory looks like a secret").noticed == [
        "version 1: an AWS key",
        "version 2: an AWS key",
    ]
    assert secret not in repr(list(memory.doctor()))


@pytest.mark.parametrize(
    "piece",
    ["a.", "-eyJ", "a", " ", "://a:", "-----BEGIN ", "password", "password=", "sk-", "A1 ", "eyJaaaaaaaa."],
)
def test_no_text_holds_the_doctor_up(piece: str) -> None:
    """A value of the largest size, made to be tried again and again; patience is the test's time-out."""
    hints = " private key .eyJ :// password "
    kinds_of_secret(piece * (1024 * 1024 // len(piece)) + hints)


def test_a_secret_in_the_history_is_still_there(memory: Alcove) -> None:
    for value in ({"password": "hunter22"}, {"password": "hunter23"}, {"n": 1}):
        memory.as_user("al").put(AL, "key", value)
    assert found(memory, "no memory looks like a secret").noticed == ["user:al 'key': a password"]


@pytest.mark.parametrize(
    "text",
    ["", "the password: <your password>", "password=***", "PASSWORD=$SECRET", "sk-learn is a library",
     "https://example.org/a:b@c", "secretary: Ms. Smith", "passwords are forgotten", '{"password": null}',
     "eyJ is how tokens start", "token: none of it"],
)  # fmt: skip
def test_what_only_speaks_of_secrets_is_none(text: str) -> None:
    assert kinds_of_secret(text) == set()


@pytest.mark.parametrize(
    "text",
    ['{"api_key":"abcd1234"}', "DB_PASSWORD: hunter22", "pwd = 'hunter22'", '"passphrase" : "four words"',
     '{"note":"\\"secret\\": \\"hunter22\\""}'],
)  # fmt: skip
def test_a_password_is_known_however_it_is_written(text: str) -> None:
    assert kinds_of_secret(text) == {"a password"}


def test_the_same_value_twice_in_one_namespace_is_noticed(memory: Alcove) -> None:
    al = memory.as_user("al")
    al.put(AL, "a", {"likes": "tea", "n": 1})
    al.put(AL, "b", {"n": 1, "likes": "tea"})
    al.put(AL, "c", {"likes": "tea"})
    al.put((*AL, "elsewhere"), "d", {"likes": "tea"})
    al.put(AL, "gone", {"likes": "tea"})
    al.delete(AL, "gone")
    examination = found(memory, "no two memories of a namespace are the same")
    assert (examination.compared, examination.wrong) == (4, [])
    assert examination.noticed == ["user:al 'b': the same as user:al 'a'"]
    assert_sound(memory)


def test_a_data_key_that_seals_nothing_is_noticed(memory: Alcove, path: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.as_user("bob").put(("user", "bob"), "key", {"n": 1}, idempotency_key="once")
    for user in ("al", "bob"):
        query(path, f"DELETE FROM versions WHERE user = '{user}'")
        query(path, f"DELETE FROM namespaces WHERE owner = '{user}'")
    examination = found(memory, "every data key seals something")
    assert (examination.noticed, examination.wrong) == (["user:al"], [])


def test_a_value_that_does_not_open_is_damage(memory: Alcove, path: Path) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    query(path, "UPDATE versions SET sealed = zeroblob(50)")
    examination = found(memory, "every value opens under its key, at its place")
    assert len(examination.wrong) == 1
    assert "restore" in examination.advice


@pytest.mark.parametrize("damage", ["missing", "empty", "a line", "a folder"])
def test_a_ledger_that_cannot_be_read_is_damage(memory: Alcove, path: Path, damage: str) -> None:
    memory.as_user("al").put(AL, "key", {"n": 1})
    memory.wipe("al")
    ledger = path.with_name("memory.db.wipes")
    match damage:
        case "missing" | "a folder":
            ledger.unlink()
            if damage == "a folder":
                ledger.mkdir()
        case "empty":
            ledger.write_bytes(b"")
        case _:
            ledger.write_bytes(ledger.read_bytes() + b"spoilt\n")
    (finding,) = found(memory, "the ledger of wipes can be read").wrong
    assert str(ledger) in finding
