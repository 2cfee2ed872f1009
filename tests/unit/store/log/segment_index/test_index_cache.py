"""The cache of index parts keeps its limit."""

from jetlake.store.log.segment_index.index_cache import IndexCache


class Holder:
    def __init__(self) -> None:
        self.released: list[str] = []

    def release(self, part: str) -> None:
        self.released.append(part)


def test_what_was_read_first_is_released_first() -> None:
    cache, holder = IndexCache(100), Holder()
    for part in "abc":
        cache.hold(holder, part, 40)
    assert holder.released == ["a"]
    assert cache.bytes == 80
    cache.hold(holder, "d", 90)
    assert holder.released == ["a", "b", "c"]


def test_the_newest_part_stays_whatever_its_size() -> None:
    cache, holder = IndexCache(0), Holder()
    cache.hold(holder, "a", 1000)
    assert holder.released == []
    cache.hold(holder, "b", 1)
    assert holder.released == ["a"]


def test_what_is_forgotten_counts_no_more_and_is_not_released() -> None:
    cache, holder = IndexCache(100), Holder()
    cache.hold(holder, "a", 90)
    cache.forget(holder, ("a", "b"))
    cache.hold(holder, "b", 90)
    assert (holder.released, cache.bytes) == ([], 90)
    cache.hold(holder, "b", 50)
    assert cache.bytes == 50
