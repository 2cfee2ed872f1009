"""Values for Arrow, made without its own conversions."""

import numpy as np
import pyarrow as pa
import pytest

from jetlake.client.tables import arrow_values
from jetlake.client.tables.arrow_values import binary_of, cut_bytes, repeated


@pytest.mark.parametrize("values", [[], [b""], [b"one", b"", b"\xc3\xa4", b"four"]])
@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_values_are_those_of_arrows_own_conversion(values, kind):
    array = binary_of(values, kind)
    array.validate(full=True)
    assert array.equals(pa.array(values, pa.binary()).cast(kind))


def test_bytes_are_cut_into_values_of_the_given_sizes():
    array = cut_bytes(b"abcd", np.array([1, 0, 3]))
    array.validate(full=True)
    assert array.to_pylist() == [b"a", b"", b"bcd"]


@pytest.mark.parametrize(("value", "count"), [(b"S", 0), (b"S", 3), (b"", 2)])
def test_a_value_is_repeated(value, count):
    array = repeated(value, count, pa.string())
    array.validate(full=True)
    assert array.type == pa.string()
    assert array.to_pylist() == [value.decode()] * count


def test_more_bytes_than_an_array_holds_are_refused(monkeypatch):
    monkeypatch.setattr(arrow_values, "_BYTES_MAX", 3)
    assert len(binary_of([b"ab", b"c"])) == 2
    with pytest.raises(OverflowError, match="3 bytes at most, not 4"):
        repeated(b"ab", 2)
