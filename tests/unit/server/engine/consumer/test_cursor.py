"""A consumer's way through a stream, against a stream that is looked through from end to end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jetlake.server.engine.consumer.feed import Cursor, StartPosition, last_of_subjects
from jetlake.store.memory_store import MemoryStore
from jetlake.store.subject_filter import SubjectFilter

SUBJECTS = [b"a.1", b"a.2", b"b.1"]
PATTERNS = [None, b"a.*", b"a.1", b"b.>"]


def make_store(*subjects):
    store = MemoryStore()
    for number, subject in enumerate(subjects):
        store.append(subject, b"", b"", number + 1)
    return store


def read(cursor, store, count=99):
    messages, next_sequence = cursor.read(count, 1 << 20, store.last_sequence)
    cursor.move_past(len(messages), next_sequence)
    return [message.sequence for message in messages]


def test_reading_does_not_move():
    store = make_store(b"a.1", b"b.1", b"a.1")
    cursor = Cursor(store, SubjectFilter([b"a.1"]), StartPosition(1))
    assert [message.sequence for message in cursor.read(1, 1, 3)[0]] == [1]
    assert [message.sequence for message in cursor.read(2, 1 << 20, 3)[0]] == [1, 3]
    assert (cursor.position, cursor.pending) == (1, 2)


def test_nothing_beyond_what_may_be_seen():
    store = make_store(b"a.1", b"a.1", b"a.1")
    cursor = Cursor(store, None, StartPosition(1))
    assert [message.sequence for message in cursor.read(9, 1 << 20, 2)[0]] == [1, 2]


def test_the_newest_of_every_subject_first():
    store = make_store(b"a.1", b"a.2", b"a.1", b"b.1", b"a.2")
    cursor = Cursor(store, SubjectFilter([b"a.*"]), StartPosition(1))
    cursor.go_to(last_of_subjects(store, cursor.subject_filter, 1, 5))
    store.append(b"a.1", b"", b"", 9)
    cursor.on_stored(1)
    assert (cursor.pending, cursor.resume) == (3, 6)
    assert cursor.is_ahead(3)
    assert not cursor.is_ahead(2)
    assert (read(cursor, store), read(cursor, store), cursor.pending) == ([3, 5], [6], 0)


def test_a_filter_that_changes_among_the_chosen_ones():
    store = make_store(b"a.1", b"a.2", b"b.1")
    cursor = Cursor(store, None, StartPosition(1))
    cursor.go_to(last_of_subjects(store, None, 1, 3))
    assert read(cursor, store, 1) == [1]
    cursor.filter_by(SubjectFilter([b"b.>"]))
    assert (cursor.pending, read(cursor, store)) == (1, [3])


def test_a_purge_takes_the_chosen_ones_along():
    store = make_store(b"a.1", b"a.2", b"b.1")
    cursor = Cursor(store, None, StartPosition(1))
    cursor.go_to(last_of_subjects(store, None, 1, 3))
    store.purge()
    cursor.on_purged()
    store.append(b"a.1", b"", b"", 9)
    cursor.on_stored(1)
    assert cursor.pending == 1
    assert read(cursor, store) + read(cursor, store) == [4]


def test_what_was_taken_back_moves_the_end_back():
    store = make_store(b"a.1", b"a.1")
    cursor = Cursor(store, None, StartPosition(5))
    cursor.on_purged()
    assert cursor.position == 3
    cursor.go_to(StartPosition(5), waits=True)
    cursor.on_purged()
    assert cursor.position == 5


class AgainstTheStream(RuleBasedStateMachine):
    """Every message that passes, once, in order, and `pending` says how many are left."""

    @initialize(pattern=st.sampled_from(PATTERNS), start=st.integers(1, 12), chosen=st.booleans(), data=st.data())
    def begin(self, pattern, start, chosen, data):
        self.store = make_store(*data.draw(st.lists(st.sampled_from(SUBJECTS), max_size=10)))
        self.filter = SubjectFilter.of([pattern] if pattern else [])
        self.cursor = Cursor(self.store, self.filter, StartPosition(1))
        self.expected_from = start
        self.extra = None
        if chosen and self.store.messages:
            last = self.store.last_sequence
            position = last_of_subjects(self.store, self.filter, 1, last)
            self.cursor.go_to(position)
            self.expected_from = position.resume or position.sequence
            self.extra = list(position.chosen)
        else:
            self.cursor.go_to(StartPosition(start), waits=True)

    def alive(self):
        first = [] if self.extra is None else [sequence for sequence in self.extra if self.store.has(sequence)]
        rest = [
            sequence
            for sequence in range(self.expected_from, self.store.last_sequence + 1)
            if self.store.has(sequence)
            and (self.filter is None or self.filter.matches(self.store.get(sequence).subject))
        ]
        return first + rest

    @rule(subject=st.sampled_from(SUBJECTS))
    def store_one(self, subject):
        self.store.append(subject, b"", b"", self.store.last_sequence + 100)
        if self.cursor.wants(subject):
            self.cursor.on_stored(1)

    @rule(count=st.integers(1, 4))
    def take(self, count):
        expected = self.alive()
        taken = read(self.cursor, self.store, count)
        assert taken == expected[: len(taken)]
        assert taken or not expected
        if self.extra is not None:
            self.extra = [sequence for sequence in self.extra if not taken or sequence > taken[-1]]
        if taken and taken[-1] >= self.expected_from:
            self.expected_from = taken[-1] + 1

    @precondition(lambda self: self.store.messages)
    @rule(data=st.data())
    def remove(self, data):
        sequence = data.draw(st.integers(self.store.first_sequence, self.store.last_sequence))
        message = self.store.get(sequence)
        if message is not None:
            self.store.remove(sequence)
            self.cursor.on_removed(sequence, message.subject)

    @rule(below=st.integers(1, 8))
    def purge(self, below):
        if below <= self.store.last_sequence:
            self.store.purge(below=below)
            self.cursor.on_purged()

    @invariant()
    def counts(self):
        assert self.cursor.pending == len(self.alive())


TestAgainstTheStream = AgainstTheStream.TestCase
TestAgainstTheStream.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
