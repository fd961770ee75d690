"""The queue of texts that wait for their vectors: whose turn it is, what a step costs, who waits and how."""

from __future__ import annotations

import random
import threading
from collections import Counter

import msgspec
import numpy as np
import pytest

from alcove import Alcove, Namespace, Settings
from alcove.core.clock import SECOND
from alcove.engine.rows import MAX_INT64, EmbeddedPiece, Scope, TextToIndex
from alcove.search.embedders import Matrix
from alcove.search.embedders.minilm import MiniLM
from alcove.search.embedders.sentence_encoder import BATCH_TOKENS, Network, TokenStates
from alcove.search.indexer import LEASE_SECONDS, STEP_BYTES, Indexer
from alcove.search.text_vectors import decode_vectors, embed_texts
from tests.contract.conftest import Open
from tests.support.clock import ManualClock
from tests.support.hashed_embedder import WINDOW, Bag, Counted
from tests.support.waiting import LONG, until

HOME = ("user", "noop")
BY_HAND = Settings(sweep_interval=0, indexing_interval=0)
"""No thread indexes: the test makes every step itself."""
LARGE = {f"f{n}": " ".join(f"word{n}-{k}" for k in range(3000)) for n in range(3)}
"""About twelve steps' worth."""


class Queue:
    """A store whose indexing is done step by step, by as many processes as a test likes."""

    def __init__(self, memory: Alcove, clock: ManualClock) -> None:
        self.memory, self.clock = memory, clock
        self.index = memory.memories._engine.index
        self.embedder = Counted()

    def indexer(self) -> Indexer:
        return Indexer(self.index, self.embedder, self.clock, interval=30, batch=100)

    def put(self, user: str, key: str, texts: dict[str, str], room: str = "") -> int:
        place = ("user", user, room) if room else ("user", user)
        self.memory.as_user(user).put(place, key, {}, index=texts)
        return self.memory.memories._engine.last_seq()

    def waiting(self, seq: int) -> bool:
        return self.index.pending_status(seq)[0]

    def drain(self, indexer: Indexer) -> int:
        steps = 0
        while indexer.step():
            steps += 1
        return steps

    def kept(self, user: str) -> dict[int, bytes]:
        low, high = Namespace(("user", user)).subtree()
        _, texts = self.index.live_texts(Scope(low, high), self.embedder.name, MAX_INT64)
        return {text.seq: text.vectors for text in texts if text.vectors}


def at_once(seq: int, texts: dict[str, str]) -> TextToIndex:
    return TextToIndex(seq, msgspec.json.encode(texts).decode())


@pytest.fixture
def queue(open_store: Open, clock: ManualClock) -> Queue:
    return Queue(open_store(clock=clock, settings=BY_HAND), clock)


def matrices(body: bytes) -> dict[str, Matrix]:
    """Vectors as they were kept, by field."""
    return {
        name: np.array([np.frombuffer(row, dtype=np.float32) for row in rows])
        for name, rows in decode_vectors(body)[0].items()
    }


def test_who_writes_little_does_not_wait_for_who_writes_much(queue: Queue) -> None:
    indexer = queue.indexer()
    large = [queue.put("mallory", f"k{n}", LARGE, room=f"r{n}") for n in range(3)]
    many = {"op": "put", "namespace": HOME, "value": {}, "index": {"text": "rain " * 100}}
    queue.memory.batch([{**many, "key": f"k{n}"} for n in range(300)])
    indexer.step()
    small = queue.put("alice", "k", {"text": "tea"})
    for _ in range(3):
        indexer.step()
    assert not queue.waiting(small)
    assert all(queue.waiting(seq) for seq in large)
    assert queue.drain(indexer) > 10
    assert not any(queue.waiting(seq) for seq in large)


@pytest.mark.parametrize("seed", range(30 if LONG else 3))
def test_a_text_waits_for_at_most_one_piece_of_each_other_writer(queue: Queue, seed: int) -> None:
    chance, indexer = random.Random(seed), queue.indexer()
    writers: dict[int, str] = {}
    bound: dict[int, float] = {}
    for turn in range(60):
        for n in range(chance.choice([0, 1, 1, 2])):
            user, large = f"u{chance.randrange(5)}", chance.random() < 0.3
            alone, count = user not in writers.values(), chance.randrange(4000, 9000) if large else 1
            seq = queue.put(user, f"{turn}-{n}", {"t": " ".join(f"w{k}" for k in range(count))}, room=f"r{n}")
            writers[seq] = user
            if alone and not large:
                bound[seq] = sum(queue.embedder.sizes) + 1.1 * STEP_BYTES * len(set(writers.values()))
        indexer.step()
        assert all(most > sum(queue.embedder.sizes) for most in bound.values())
        writers = {seq: user for seq, user in writers.items() if queue.waiting(seq)}
        bound = {seq: most for seq, most in bound.items() if queue.waiting(seq)}
    queue.drain(indexer)
    assert queue.memory.admin.index().waiting == 0


def test_two_who_write_without_end_are_served_alike_whatever_the_size_of_their_texts(queue: Queue) -> None:
    indexer, served = queue.indexer(), Counter[str]()
    for n in range(4):
        queue.put("large", f"k{n}", LARGE)
    small = [queue.put("small", f"k{n}", {"text": "tea " * 1000}) for n in range(60)]
    for _ in range(20):
        before = len(queue.embedder.texts)
        indexer.step()
        for text in queue.embedder.texts[before:]:
            served["small" if "tea" in text else "large"] += len(text)
    assert 0.5 < served["small"] / served["large"] < 2
    assert any(queue.waiting(seq) for seq in small)


def test_a_text_that_fails_holds_up_nobody_and_gives_newcomers_no_right_of_way(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = queue.embedder.embed

    def refusing(texts: list[str]) -> object:
        if "poison" in texts:
            raise ValueError("poison")
        return embed(texts)

    monkeypatch.setattr(queue.embedder, "embed", refusing)
    indexer = queue.indexer()
    poison = queue.put("mallory", "k", {"text": "poison"})
    queue.put("bob", "k", LARGE)
    for _ in range(4):
        indexer.step()
    assert queue.waiting(poison)
    queue.put("alice", "k", {"text": "tea " * 12_000})
    before = len(queue.embedder.texts)
    for _ in range(3):
        indexer.step()
    assert {text[:3] for text in queue.embedder.texts[before:]} == {"tea", "wor"}, "each in turn"


def test_no_step_embeds_more_than_its_share_and_a_text_in_pieces_has_the_vectors_of_a_whole_one(
    queue: Queue,
) -> None:
    texts = [LARGE, {"a": "tea", "blank": "  ", **LARGE, "z": "rain"}, {"one": "x" * 60_000, "two": "tea"}]
    texts += [{f"f{n}": "tea" for n in range(64)}] * 100 + [{"text": "  "}, {"text": "tea " * 2048}]
    expected: dict[int, bytes] = {}
    for n, text in enumerate(texts):
        seq = queue.put("alice", f"k{n}", text)
        expected |= {each.text.seq: each.body for each in embed_texts(Bag(), [at_once(seq, text)])}
    queue.drain(queue.indexer())
    assert queue.kept("alice") == expected
    uncut = [size for size in queue.embedder.sizes if size > 1.1 * STEP_BYTES]
    assert uncut == [60_000], "but for a single window that has more"


def test_several_who_index_at_once_do_everything_once(open_store: Open, clock: ManualClock) -> None:
    queues = [Queue(open_store(clock=clock, settings=BY_HAND), clock) for _ in range(3)]
    for n in range(60):
        queues[0].put(f"u{n % 4}", f"k{n}", LARGE if n % 10 == 0 else {"text": f"tea {n}"})

    def work(queue: Queue) -> None:
        indexer = queue.indexer()
        while queue.index.next_due() is not None and queue.memory.admin.index().waiting:
            indexer.step()

    threads = [threading.Thread(target=work, args=[queue]) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    windows = [window for queue in queues for window in queue.embedder.texts]
    assert len(windows) == 54 + 6 * 3 * 3000 // WINDOW
    assert queues[0].memory.admin.index().indexed == 60


def test_a_crash_in_the_middle_of_a_large_text_repeats_one_piece_and_shows_nothing_half(queue: Queue) -> None:
    seq = queue.put("alice", "k", LARGE)
    first = queue.indexer()
    for _ in range(3):
        first.step()
    now = queue.clock()
    lease = now + LEASE_SECONDS * 1_000_000
    lost = queue.index.claim(now=now, until=lease, limit=100, max_bytes=STEP_BYTES)
    assert [text.seq for text in lost] == [seq], "claimed, and then the process is gone"
    done, other = len(queue.embedder.texts), queue.indexer()
    assert other.step() == 0
    assert queue.kept("alice") == {}
    assert [each for each in queue.memory.doctor() if each.wrong] == []
    queue.clock.advance(LEASE_SECONDS + 1)
    queue.drain(other)
    assert done > 0
    assert len(queue.embedder.texts) == 3 * 3000 // WINDOW, "what was done before the crash is not done again"
    assert [rows.shape for rows in matrices(queue.kept("alice")[seq]).values()] == [(375, 48)] * 3


def test_who_comes_back_after_its_claim_ran_out_changes_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    seq, slow = queue.put("alice", "k", LARGE), queue.indexer()
    store, others = queue.index.store_vectors, [Indexer.step, queue.drain]

    def late(name: str, pieces: object) -> bool:
        monkeypatch.undo()
        queue.clock.advance(LEASE_SECONDS + 1)
        others.pop(0)(queue.indexer())
        return store(name, pieces)  # type: ignore[arg-type]

    for done in (0, 1):
        monkeypatch.setattr(queue.index, "store_vectors", late)
        slow.step()
        assert len(queue.kept("alice")) == done
    assert [rows.shape for rows in matrices(queue.kept("alice")[seq]).values()] == [(375, 48)] * 3


def test_a_claim_holds_for_as_long_as_its_texts_are_embedded(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("alcove.search.indexer.RENEW_SECONDS", 0.01)
    queue.put("alice", "k", {"text": "tea"})
    embed = queue.embedder.embed

    def long(texts: list[str]) -> Matrix:
        for _ in range(3):
            queue.clock.advance(LEASE_SECONDS - 1)
            until(lambda: (queue.index.next_due() or 0) == queue.clock() + LEASE_SECONDS * SECOND)
        assert queue.indexer().step() == 0, "nobody else takes it"
        return embed(texts)

    monkeypatch.setattr(queue.embedder, "embed", long)
    assert queue.indexer().step() == 1
    assert len(queue.kept("alice")) == 1


def test_a_last_piece_without_those_before_it_is_not_kept(queue: Queue) -> None:
    seq, indexer = queue.put("alice", "k", LARGE), queue.indexer()
    for _ in range(3):
        indexer.step()
    (text,) = queue.index.claim(now=queue.clock(), until=MAX_INT64, limit=1, max_bytes=1)
    assert text.window
    assert queue.index.switch(queue.embedder.name, {seq: "refused meanwhile"})
    assert queue.index.store_vectors(queue.embedder.name, [EmbeddedPiece(text, b"\x80", 1, None)])
    assert queue.kept("alice") == {}
    assert queue.waiting(seq)


def test_pieces_of_two_models_under_one_name_never_become_one_text(queue: Queue) -> None:
    seq = queue.put("alice", "k", LARGE)
    queue.indexer().step()
    queue.embedder.dimensions = 32
    other = queue.indexer()
    while queue.index.pending_status(seq) == (True, None):
        other.step()
    assert "alcove reindex" in str(queue.index.pending_status(seq)[1])
    assert queue.kept("alice") == {}


def test_what_was_parked_and_is_tried_again_takes_its_turn(queue: Queue) -> None:
    large = [queue.put("mallory", f"k{n}", LARGE) for n in range(4)]
    assert queue.index.switch(queue.embedder.name, dict.fromkeys(large, "refused"))
    assert queue.index.retry_all() == 4
    small, indexer = queue.put("alice", "k", {"text": "tea"}), queue.indexer()
    for _ in range(2):
        indexer.step()
    assert not queue.waiting(small)


def test_a_text_half_embedded_goes_with_its_version(queue: Queue) -> None:
    seq, indexer = queue.put("alice", "k", LARGE), queue.indexer()
    indexer.step()
    assert len(queue.index.partial_vectors(seq)) == 1
    queue.put("alice", "k", {"text": "tea"})
    assert queue.index.partial_vectors(seq) == []
    queue.drain(indexer)
    assert len(queue.kept("alice")) == 1


def test_the_model_itself_is_given_bounded_batches_and_cut_texts_lose_nothing(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, run = [], Network.run

    def counted(self: Network, rows: list[int], tokens: list[list[int]]) -> TokenStates:
        given.append(len(tokens) * max(map(len, tokens)))
        return run(self, rows, tokens)

    monkeypatch.setattr(Network, "run", counted)
    monkeypatch.setattr("alcove.search.indexer.STEP_BYTES", 1500)
    texts = {
        "text": " ".join(f"On day {n} she watered plant {n * n}." for n in range(100)),
        "title": "plants",
    }
    seq, model = queue.put("alice", "k", texts), MiniLM()
    queue.embedder = model  # type: ignore[assignment]
    indexer = queue.indexer()
    assert queue.drain(indexer) >= 3
    (whole,) = embed_texts(model, [at_once(seq, texts)])
    expected, found = matrices(whole.body), matrices(queue.kept("alice")[seq])
    assert expected.keys() == found.keys()
    for name, rows in expected.items():
        assert found[name] == pytest.approx(rows, abs=1e-5)
    assert max(given) <= BATCH_TOKENS


def test_who_waits_for_long_looks_ever_more_rarely_and_not_past_the_time_given(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    seq, indexer, now = queue.put("alice", "k", {"text": "tea"}), queue.indexer(), 100.0
    slept = list[float]()

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(indexer, "wake", lambda: None)  # no thread
    monkeypatch.setattr("alcove.search.indexer.time.monotonic", lambda: now)
    monkeypatch.setattr("alcove.search.indexer.time.sleep", sleep)
    indexer.wait(seq, 30)
    assert sum(slept) == pytest.approx(30)
    assert len(slept) < 100
    assert slept[0] < 0.01
    indexer.step()
    slept.clear()
    indexer.wait(seq, 30)
    assert slept == []
