"""Codecs of keys and values: what comes back is what went in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.client.kv import Base64Keys, Base64Values, KeyChain, PathKeys
from jetlake.client.kv.config import check_key
from jetlake.errors import DecodeError

TOKEN = st.text(st.characters(exclude_characters="./", exclude_categories=("Cs",)), min_size=1).filter(
    lambda token: token not in ("*", ">", "_root_")
)


@given(st.lists(TOKEN, min_size=1, max_size=4))
def test_any_key(tokens):
    stored = Base64Keys().encode(".".join(tokens))
    assert Base64Keys().decode(check_key(stored)) == ".".join(tokens)


@given(st.booleans(), st.lists(TOKEN, min_size=1, max_size=4))
def test_any_path(is_absolute, tokens):
    path = "/" * is_absolute + "/".join(tokens)
    codec = KeyChain(PathKeys(), Base64Keys())
    assert codec.decode(check_key(codec.encode(path))) == path


def test_paths():
    codec = PathKeys()
    assert [codec.encode(path) for path in ("/", "/a/b/", "a", "/a/*", "/>")] == [
        "_root_",
        "_root_.a.b",
        "a",
        "_root_.a.*",
        "_root_.>",
    ]
    assert [codec.decode(key) for key in ("_root_", "_root_.a.b", "a.b", "_root_x")] == ["/", "/a/b", "a/b", "_root_x"]


@given(st.binary())
def test_any_value(value):
    assert Base64Values().decode(Base64Values().encode(value)) == value


def test_what_is_no_base64():
    with pytest.raises(DecodeError, match="not valid base64"):
        Base64Keys().decode("a")
    with pytest.raises(DecodeError, match="not valid base64"):
        Base64Values().decode(b"!")
