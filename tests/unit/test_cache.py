"""The cache that the whole product uses."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from alcove.core.cache import Cache


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = Cache[str, int](max_entries=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)


def test_entries_go_until_their_bytes_fit() -> None:
    cache = Cache[str, int](max_bytes=10)
    for key in "abc":
        cache.put(key, 0, 3)
    assert (len(cache), cache.size_bytes) == (3, 9)
    cache.put("d", 0, 8)
    assert (len(cache), cache.size_bytes, "d" in cache) == (1, 8, True)


def test_a_value_larger_than_the_cache_replaces_nothing_but_its_own_key() -> None:
    cache = Cache[str, int](max_bytes=10)
    cache.put("a", 1, 5)
    cache.put("b", 2, 5)
    cache.put("a", 3, 11)
    assert (cache.get("a"), cache.get("b"), cache.size_bytes) == (None, 2, 5)


def test_a_new_value_of_a_key_replaces_the_old_one_and_its_size() -> None:
    cache = Cache[str, int](max_bytes=10)
    cache.put("a", 1, 9)
    cache.put("a", 2, 4)
    assert (cache.get("a"), cache.size_bytes) == (2, 4)


def test_a_stored_none_is_told_from_a_missing_entry_by_the_default() -> None:
    cache = Cache[str, None](max_entries=1)
    assert cache.get("a", "missing") == "missing"
    cache.put("a", None)
    assert cache.get("a", "missing") is None


def test_the_owner_learns_of_every_entry_that_leaves() -> None:
    gone = list[tuple[str, int]]()
    cache = Cache[str, int](max_entries=2, on_remove=lambda key, value: gone.append((key, value)))
    cache.put("a", 1)
    cache.put("a", 2)
    cache.put("b", 3)
    cache.put("c", 4)
    cache.remove("b")
    cache.remove("nothing")
    cache.clear()
    assert gone == [("a", 1), ("a", 2), ("b", 3), ("c", 4)]
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_a_cache_without_a_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes or max_entries"):
        Cache[str, int]()


def test_threads_together_keep_its_bounds_and_its_sum() -> None:
    cache = Cache[int, int](max_bytes=500, max_entries=50)

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(3000):
            key = choose.randrange(100)
            match choose.randrange(4):
                case 0:
                    cache.remove(key)
                case 1:
                    assert cache.get(key, key) == key
                case _:
                    cache.put(key, key, choose.randrange(20))

    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(work, seed) for seed in range(4)]:
            each.result()
    assert len(cache) <= 50
    assert cache.size_bytes <= 500
    cache.clear()
    assert cache.size_bytes == 0
