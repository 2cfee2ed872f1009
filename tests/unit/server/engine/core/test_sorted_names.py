"""Names in order: sorted once for all pages of a list."""

from jetlake.server.engine.core.sorted_names import SortedNames
from jetlake.store.steps import finish


def test_names_are_sorted_again_only_after_a_change():
    names, asked = ["c", "a", "b"], []

    def given():
        asked.append(len(names))
        return names

    ordered = SortedNames(given)
    assert [finish(ordered.get()) for _ in range(3)] == [["a", "b", "c"]] * 3
    names.append("aa")
    ordered.changed()
    assert finish(ordered.get()) == ["a", "aa", "b", "c"]
    assert asked == [3, 4]


def test_a_change_while_names_are_sorted_counts():
    names = [f"n{number:05}" for number in reversed(range(5000))]
    ordered = SortedNames(lambda: names)
    steps = ordered.get()
    next(steps)
    names.append("a")
    ordered.changed()
    assert len(finish(steps)) == 5000
    assert finish(ordered.get())[0] == "a"


def test_lists_follow_streams_and_consumers_that_come_and_go(harness):
    harness.create("B", subjects=["b"])
    assert harness.api("STREAM.NAMES")["streams"] == ["B"]
    harness.create("A", subjects=["a"])
    assert harness.api("STREAM.NAMES")["streams"] == ["A", "B"]
    for name in ("y", "x"):
        harness.api(f"CONSUMER.DURABLE.CREATE.A.{name}", {"stream_name": "A", "config": {"durable_name": name}})
        assert name in harness.api("CONSUMER.NAMES.A")["consumers"]
    assert [info["name"] for info in harness.api("CONSUMER.LIST.A")["consumers"]] == ["x", "y"]
    harness.api("CONSUMER.DELETE.A.y")
    harness.api("STREAM.DELETE.B")
    assert (harness.api("CONSUMER.NAMES.A")["consumers"], harness.api("STREAM.NAMES")["streams"]) == (["x"], ["A"])
