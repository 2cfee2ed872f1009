"""The table of message ids: a dict that never has to grow as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.stream.ids.id_table import IdTable


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9000), st.integers(1, 4000)), max_size=12))
def test_it_agrees_with_a_dict(steps):
    table, model = IdTable(), {}
    for sequence, (adds, first, count) in enumerate(steps, 1):
        ids = [b"%d" % number for number in range(first, first + count)]
        if adds:
            table.update(dict.fromkeys(ids, sequence))
            model.update(dict.fromkeys(ids, sequence))
        else:
            for message_id in ids:
                table.discard(message_id, model.get(message_id, 1))
                model.pop(message_id, None)
    get = table.getter()
    assert len(table) == len(model)
    assert all(get(b"%d" % number) == model.get(b"%d" % number, 0) for number in range(0, 13_000, 7))


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 4000)), max_size=8), st.booleans())
def test_a_run_of_ids_is_added_whole_or_not_at_all(runs, twice):
    table, model, next_sequence = IdTable(), {}, 1
    for first, count in runs:
        ids = [b"%d" % number for number in range(first, first + count)]
        if twice:
            ids.append(ids[0])
        sequences = list(range(next_sequence, next_sequence + len(ids)))
        is_new = model.keys().isdisjoint(ids) and not twice
        assert table.add_new(ids, sequences) == is_new
        if is_new:
            model.update(zip(ids, sequences, strict=True))
            next_sequence += len(ids)
    get = table.getter()
    assert len(table) == len(model)
    assert all(get(message_id) == sequence for message_id, sequence in model.items())


def test_an_id_with_a_newer_sequence_stays():
    table = IdTable()
    table.update({b"a": 1})
    table.update({b"a": 2})
    table.discard(b"a", 1)
    assert table.get(b"a") == 2
    table.clear()
    assert (table.get(b"a"), len(table)) == (0, 0)


def test_no_part_of_a_large_table_is_large():
    table = IdTable()
    for first in range(0, 100_000, 1000):
        table.update({b"%d" % number: number for number in range(first, first + 1000)})
    assert max(map(len, table._parts)) < 1000
