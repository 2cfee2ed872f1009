"""The configuration syntax: what it can say, and where its errors point."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.errors import ConfigError
from jetlake.server.config.conf import Value, parse_file, parse_text

PARSED = {
    "a: 1": {"a": 1},
    "a = 1": {"a": 1},
    "a 1": {"a": 1},
    "a=1;b=2": {"a": 1, "b": 2},
    "a: 1, b: 2": {"a": 1, "b": 2},
    "a { b: 1 }": {"a": {"b": 1}},
    "a{b:1}": {"a": {"b": 1}},
    "a: {\n b = 1\n c = 2 }\n": {"a": {"b": 1, "c": 2}},
    '{"a": 1, "b": [true, null]}': {"a": 1, "b": [True, "null"]},
    "a: [1, 2, 3]": {"a": [1, 2, 3]},
    "a: [\n 1\n 2 # two\n 3, // three\n]": {"a": [1, 2, 3]},
    "a: []\nb {}": {"a": [], "b": {}},
    "a: [{b: 1}, {b: 2}]": {"a": [{"b": 1}, {"b": 2}]},
    "# comment\n// another\na: 1 # end\nb: 2 // end": {"a": 1, "b": 2},
    "url: nats://host:4222": {"url": "nats://host:4222"},
    "a: x#y": {"a": "x#y"},
    'a: "x y"': {"a": "x y"},
    "a: 'x \\n y'": {"a": "x \\n y"},
    r'a: "tab\t quote\" hex\x41 back\\"': {"a": 'tab\t quote" hexA back\\'},
    "a: (\n line one\n line two\n)\nb: 1": {"a": " line one\n line two", "b": 1},
    "a: yes\nb: OFF\nc: True": {"a": True, "b": False, "c": True},
    "a: 1K\nb: 1KB\nc: 2m\nd: 3Gi\ne: 1tib": {"a": 1000, "b": 1024, "c": 2_000_000, "d": 3 * 2**30, "e": 2**40},
    "a: -5\nb: -1.5\nc: 0.25": {"a": -5, "b": -1.5, "c": 0.25},
    "a: 127.0.0.1\nb: 2m30s\nc: 10s": {"a": "127.0.0.1", "b": "2m30s", "c": "10s"},
    "a: 2026-11-15T00:00:00Z": {"a": "2026-11-15T00:00:00Z"},
    "'a b': 1\n\"c:d\": 2": {"a b": 1, "c:d": 2},
    "a: 1\na: 2": {"a": 2},
    "X = 5\na: $X": {"X": 5, "a": 5},
    "X = 5\na { b: $X, X: 6, c: $X }": {"X": 5, "a": {"b": 5, "X": 6, "c": 6}},
    "a: $HOME_PORT": {"a": 4222},
    "a: $LISTED": {"a": ["x", "y"]},
    "a: $2a$11$abcdef": {"a": "$2a$11$abcdef"},
    "a: 1 }": {"a": 1},
    "": {},
    "\n\n# nothing\n": {},
}
ENVIRONMENT = {"HOME_PORT": "4222", "LISTED": "[x, y]", "LOOP": "$LOOP"}


@pytest.mark.parametrize("text", PARSED)
def test_values(text):
    assert parse_text(text, environment=ENVIRONMENT).plain() == PARSED[text]


REFUSED = {
    "a: 1 b: 2": "conf:1:5: the value should end here, but 'b' follows",
    "x: 1\na {": "conf:2:2: the map that begins here does not end",
    "a: [1, 2": "conf:1:3: the list that begins here does not end",
    "a: [, 1]": "conf:1:4: a value was expected, not ','",
    'a: "abc': "conf:1:3: the string that begins here does not end",
    "a: 'abc": "conf:1:3: the string that begins here does not end",
    "a: (\n abc": "conf:1:3: the block that begins here does not end",
    "'abc: 1": "conf:1:0: the key that begins here does not end",
    "= 5": "conf:1:0: a key was expected, not '='",
    "a": 'conf:1:0: "a" has no value',
    "a:\nb: 1": 'conf:1:0: the value of "a" is missing',
    "a: .5": "conf:1:3: floats must start with a digit",
    "a: -x": "conf:1:3: a digit was expected behind '-', not 'x'",
    "a: 99999999999999999999": "conf:1:3: integer '99999999999999999999' is out of the range",
    "a: 9999999999G": "conf:1:3: integer '9999999999G' is out of the range",
    r'a: "\q"': "only",
    "\n\na: $NOPE": "conf:3:3: variable reference for 'NOPE' can not be found",
    "a: $LOOP": "can not be found",
    "include nofile.conf": "conf:1:7: error parsing include file 'nofile.conf', open nofile.conf: no such file",
    "include ": "include needs the path of a file",
    "a: " + "[" * 100: "lists are nested too deep",
    "a " + "{ a " * 100: "maps are nested too deep",
}


@pytest.mark.parametrize("text", REFUSED)
def test_errors_name_the_place(text):
    with pytest.raises(ConfigError) as raised:
        parse_text(text, "conf", ENVIRONMENT)
    assert REFUSED[text] in str(raised.value)


def test_include(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "main.conf").write_text('port: 1\ninclude "sub/more.conf"\nauth { include sub/users.conf }\nlast: 2\n')
    (tmp_path / "sub" / "more.conf").write_text("host: here\ninclude deeper.conf\n")
    (tmp_path / "sub" / "deeper.conf").write_text("deep: true\n")
    (tmp_path / "sub" / "users.conf").write_text("user: ann\n")
    value = parse_file(tmp_path / "main.conf")
    assert value.plain() == {"port": 1, "host": "here", "deep": True, "auth": {"user": "ann"}, "last": 2}
    assert value.data["host"].place == f"{tmp_path / 'sub' / 'more.conf'}:1:0"


def test_files_that_include_one_another_end(tmp_path):
    (tmp_path / "a.conf").write_text("include b.conf")
    (tmp_path / "b.conf").write_text("include a.conf")
    with pytest.raises(ConfigError, match="include one another too deep"):
        parse_file(tmp_path / "a.conf")


def test_a_file_that_may_have_no_end_is_refused(tmp_path):
    (tmp_path / "a.conf").write_text('include "zero"')
    (tmp_path / "zero").write_text("\0" * 16_000_001)
    with pytest.raises(ConfigError, match=r"a\.conf:1:7: .*zero: longer than 16,000,000 characters"):
        parse_file(tmp_path / "a.conf")


def test_errors_of_an_included_file_name_it(tmp_path):
    (tmp_path / "a.conf").write_text("x: 1\ninclude b.conf")
    (tmp_path / "b.conf").write_text("\n\n= 5")
    with pytest.raises(ConfigError, match=r"a\.conf:2:7: error parsing include file 'b\.conf', .*b\.conf:3:0: "):
        parse_file(tmp_path / "a.conf")


def test_a_file_of_an_editor_on_windows(tmp_path):
    (tmp_path / "a.conf").write_bytes("\ufeffport: 1\r\njetstream {\r\n  store_dir: d # here\r\n}\r\n".encode())
    assert parse_file(tmp_path / "a.conf").plain() == {"port": 1, "jetstream": {"store_dir": "d"}}


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "a.conf").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        parse_file(tmp_path / "a.conf")
    with pytest.raises(ConfigError, match="no such file"):
        parse_file(tmp_path / "missing.conf")


def test_a_used_variable_is_marked():
    value = parse_text("X = 5\nY = 6\na: $X")
    assert value.data["X"].is_variable
    assert not value.data["Y"].is_variable


class CountingText(str):
    """A text that counts the characters which are looked through to find or count others."""

    looked_through = 0

    def _look(self, start, end):
        self.looked_through += min(end, len(self)) - start

    def count(self, sub, start=0, end=sys.maxsize):
        self._look(start, end)
        return super().count(sub, start, end)

    def rfind(self, sub, start=0, end=sys.maxsize):
        self._look(start, end)
        return super().rfind(sub, start, end)


def test_the_place_of_a_value_costs_the_same_wherever_it_is():
    text = CountingText("".join(f"key{number}: {number}\n" for number in range(1000)))
    value = parse_text(text)
    assert (value.data["key999"].line, value.data["key999"].column) == (1000, 0)
    assert text.looked_through <= len(text)


PRINTABLE = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
KEYS = st.text("abcdefXYZ_", min_size=1, max_size=6).filter(lambda key: key.lower() != "include")
JSON = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | PRINTABLE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(KEYS, JSON, max_size=5))
def test_json_is_a_configuration(document):
    assert parse_text(json.dumps(document), environment={}).plain() == document


@settings(deadline=None)
@given(st.text() | st.text("a1:=,;{}[]()\"'#/ \n\t$\\-.kKmM", max_size=60))
def test_any_text_is_read_or_refused_with_its_place(text):
    try:
        value = parse_text(text, "conf", {"a": "1"})
    except ConfigError as error:
        assert str(error).startswith("conf:") or str(error).startswith("$")
    else:
        assert isinstance(value, Value)
