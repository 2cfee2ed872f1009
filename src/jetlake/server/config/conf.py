"""The NATS configuration syntax: text to values with their places in the file.

::

    document := "{"? entries "}"?
    entry    := key [":" | "="] value | "include" path
    value    := "{" entries "}" | "[" values "]" | text | number | boolean | $variable

Entries end with a line, a comma or a semicolon; comments begin with `#` or `//`. Text stands in double quotes (with
escapes), single quotes (as it is), parentheses on lines of their own (a block), or bare up to a blank or a delimiter.
Numbers take the suffixes K M G T P E (powers of 1000) and KB, Ki, KiB … (powers of 1024). A variable is a key seen
before, in this map or around it, or one of the environment.
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from jetlake.errors import ConfigError

__all__ = ["Data", "Value", "parse_file", "parse_text", "read_file"]

Data: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value]"

_DEPTH_MAX = 64
_INCLUDES_MAX = 16
_FILE_LENGTH_MAX = 16_000_000

_NOTHING = re.compile(r"[ \t\r]*")
_BARE = re.compile(r"[^\s,;\]}]*")
_BARE_KEY = re.compile(r"[^\s:={]+")
_PATH = re.compile(r"[^\s;}]+")
_INTEGER = re.compile(r"(-?\d+)(?:([kmgtpe])(i?b|i)?)?", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+")
_ESCAPE = re.compile(r'\\(x[0-9a-fA-F]{2}|["\\nrt])')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BCRYPT = ("2a$", "2b$", "2x$", "2y$")
_INT64_MAX = 2**63 - 1


class Value:
    """One value of a configuration, with the place of its key for error messages.

    Attributes:
        data: a string, number, boolean, list of values or dict of values.
        is_variable: a `$variable` has referred to it, so that its key need not mean anything else.
    """

    __slots__ = ("column", "data", "file", "is_variable", "line")

    def __init__(self, data: Data, file: str = "", line: int = 0, column: int = 0) -> None:
        self.data = data
        self.file = file
        self.line = line
        self.column = column
        self.is_variable = False

    @property
    def place(self) -> str:
        """`file:line:column`."""
        return f"{self.file}:{self.line}:{self.column}"

    def plain(self) -> object:
        """Strip the places, at all levels."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data


def parse_file(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Value:
    """Read a configuration file, with the files that it includes.

    Raises:
        ConfigError: it cannot be read or understood; the message names file and line.
    """
    return _parse_file(os.fspath(path), os.environ if environment is None else environment, 0)


def read_file(path: str | os.PathLike[str]) -> str:
    """Return the text of a file that a person wrote: one that never ends, as `/dev/zero`, is refused.

    Raises:
        OSError: it cannot be read, or is too long.
        UnicodeDecodeError: it is no text.
    """
    with Path(path).open(encoding="utf-8-sig") as file:  # Editors on Windows begin a file with a mark.
        text = file.read(_FILE_LENGTH_MAX + 1)
    if len(text) > _FILE_LENGTH_MAX:
        raise OSError(errno.EFBIG, f"longer than {_FILE_LENGTH_MAX:,} characters", os.fspath(path))
    return text


def _parse_file(path: str, environment: Mapping[str, str], includes: int) -> Value:
    try:
        text = read_file(path)
    except OSError as error:
        raise ConfigError(f"open {path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text in UTF-8") from None
    return _Parser(text, path, environment, includes).document()


def parse_text(text: str, file: str = "config", environment: Mapping[str, str] | None = None) -> Value:
    """Read a configuration from text; error messages name it `file`.

    Raises:
        ConfigError: it cannot be understood.
    """
    return _Parser(text, file, os.environ if environment is None else environment, 0).document()


class _Parser:
    """One pass over one text, by recursive descent."""

    def __init__(self, text: str, file: str, environment: Mapping[str, str], includes: int) -> None:
        self._text = text
        self._file = file
        self._environment = environment
        self._includes = includes
        self._position = 0
        self._scopes: list[dict[str, Value]] = []
        # Every value has a place: counting the lines before each would take as long as the square of the file's length.
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]

    # Places

    def _place(self, position: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, position)
        return line, position - self._line_starts[line - 1]

    def _error(self, message: str, position: int | None = None) -> ConfigError:
        line, column = self._place(self._position if position is None else position)
        return ConfigError(f"{self._file}:{line}:{column}: {message}")

    def _value(self, data: Data, position: int) -> Value:
        return Value(data, self._file, *self._place(position))

    # Structure

    def document(self) -> Value:
        entries: dict[str, Value] = {}
        self._scopes.append(entries)
        self._skip(separators="")
        if self._peek() == "{":
            self._position += 1
        while True:
            # Braces around the whole are optional, and need not match.
            self._skip(separators=",;}")
            if self._at_end():
                return Value(entries, self._file, 1, 0)
            self._entry(entries)
            self._end_of_entry("}")

    def _map(self, start: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        self._scopes.append(entries)
        if len(self._scopes) > _DEPTH_MAX:
            raise self._error("maps are nested too deep", start)
        while True:
            self._skip(separators=",;")
            if self._at_end():
                raise self._error("the map that begins here does not end", start)
            if self._peek() == "}":
                self._position += 1
                self._scopes.pop()
                return entries
            self._entry(entries)
            self._end_of_entry("}")

    def _list(self, start: int, depth: int) -> list[Value]:
        if depth > _DEPTH_MAX:
            raise self._error("lists are nested too deep", start)
        values: list[Value] = []
        while True:
            self._skip(separators="")
            if self._at_end():
                raise self._error("the list that begins here does not end", start)
            if self._peek() == "]":
                self._position += 1
                return values
            if self._peek() == ",":
                raise self._error("a value was expected, not ','")
            values.append(self._read_value(depth + 1))
            self._end_of_entry("]")

    def _entry(self, entries: dict[str, Value]) -> None:
        start = self._position
        key, quoted = self._key()
        if key.lower() == "include" and not quoted and self._peek() in (" ", "\t"):
            self._include(entries)
            return
        self._skip(separators="")
        if self._peek() in (":", "="):
            self._position += 1
        elif self._at_end():
            raise self._error(f'"{key}" has no value', start)
        self._position = self._match(_NOTHING).end()
        if self._peek() == "\n":
            raise self._error(f'the value of "{key}" is missing', start)
        value = self._read_value(0)
        value.line, value.column = self._place(start)
        entries[key] = value

    def _key(self) -> tuple[str, bool]:
        quote = self._peek()
        if quote in ('"', "'"):
            end = self._text.find(quote, self._position + 1)
            if end < 0:
                raise self._error("the key that begins here does not end")
            key = self._text[self._position + 1 : end]
            self._position = end + 1
            return key, True
        found = _BARE_KEY.match(self._text, self._position)
        if found is None:
            raise self._error(f"a key was expected, not {quote!r}")
        self._position = found.end()
        return found.group(), False

    def _include(self, entries: dict[str, Value]) -> None:
        start = self._position
        self._position = self._match(_NOTHING).end()
        quote = self._peek()
        if quote in ('"', "'"):
            end = self._text.find(quote, self._position + 1)
            if end < 0:
                raise self._error("the path that begins here does not end")
            path = self._text[self._position + 1 : end]
            self._position = end + 1
        else:
            found = _PATH.match(self._text, self._position)
            if found is None:
                raise self._error("include needs the path of a file")
            path = found.group()
            self._position = found.end()
        if self._includes >= _INCLUDES_MAX:
            raise self._error("files include one another too deep", start)
        try:
            included = _parse_file(str(Path(self._file).parent / path), self._environment, self._includes + 1)
        except ConfigError as error:
            raise self._error(f"error parsing include file '{path}', {error}", start) from None
        assert isinstance(included.data, dict)
        entries.update(included.data)

    def _end_of_entry(self, closer: str) -> None:
        """Skip what may follow a value on its line: a separator, the end of the map or list, a comment, or nothing."""
        self._position = self._match(_NOTHING).end()
        if self._at_end() or self._peek() in ("\n", closer) or self._at_comment():
            return
        if self._peek() == "," or (self._peek() == ";" and closer == "}"):
            self._position += 1
            return
        raise self._error(f"the value should end here, but {self._peek()!r} follows")

    # Values

    def _read_value(self, depth: int) -> Value:
        start = self._position
        first = self._peek()
        if first == "{":
            self._position += 1
            return self._value(self._map(start), start)
        if first == "[":
            self._position += 1
            return self._value(self._list(start, depth), start)
        if first == '"':
            return self._value(self._double_quoted(), start)
        if first == "'":
            end = self._text.find("'", start + 1)
            if end < 0:
                raise self._error("the string that begins here does not end")
            self._position = end + 1
            return self._value(self._text[start + 1 : end], start)
        if first == "(":
            return self._value(self._block(), start)
        return self._bare(start)

    def _double_quoted(self) -> str:
        start = self._position
        end = start + 1
        while True:
            character = self._text[end : end + 1]
            if not character:
                raise self._error("the string that begins here does not end", start)
            if character == '"':
                break
            end += 2 if character == "\\" else 1
        self._position = end + 1
        return self._unescape(self._text[start + 1 : end], start)

    def _unescape(self, text: str, start: int) -> str:
        if "\\" not in text:
            return text
        if "\\" in _ESCAPE.sub("", text):
            raise self._error('only \\n \\r \\t \\" \\\\ and \\xHH can be escaped', start)
        return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1]) or chr(int(found[1][1:], 16)), text)

    def _block(self) -> str:
        start = self._position
        found = re.compile(r"\)[ \t\r]*(?=\n|\Z)").search(self._text, start)
        if found is None:
            raise self._error("the block that begins here does not end", start)
        self._position = found.end()
        return self._text[start + 1 : found.start()].strip("\r\n")

    def _bare(self, start: int) -> Value:
        found = _BARE.match(self._text, start)
        word = found.group() if found is not None else ""
        if not word and not self._at_end():
            raise self._error(f"a value was expected, not {self._peek()!r}")
        self._position = start + len(word)
        if word.startswith("$"):
            return self._variable(word[1:], start)
        if word.lower() in _BOOLEANS:
            return self._value(_BOOLEANS[word.lower()], start)
        number = self._number(word, start)
        return self._value(self._unescape(word, start) if number is None else number, start)

    def _number(self, word: str, start: int) -> int | float | None:
        found = _INTEGER.fullmatch(word)
        if found is not None:
            digits, letter, binary = found.groups()
            power = " kmgtpe".index(letter.lower()) if letter else 0
            number = int(digits) * (1024 if binary else 1000) ** power if len(digits) < 20 else _INT64_MAX + 1
            if abs(number) > _INT64_MAX:
                raise self._error(f"integer '{word}' is out of the range", start)
            return number
        if _FLOAT.fullmatch(word):
            return float(word)
        if word.startswith("."):
            raise self._error("floats must start with a digit", start)
        if word.startswith("-") and not word[1:2].isdigit():
            raise self._error(f"a digit was expected behind '-', not {word[1:2]!r}", start)
        return None

    def _variable(self, name: str, start: int) -> Value:
        if name.startswith(_BCRYPT):
            # A hashed password looks like a variable and need not be quoted.
            return self._value("$" + name, start)
        for scope in reversed(self._scopes):
            known = scope.get(name)
            if known is not None:
                known.is_variable = True
                return self._value(known.data, start)
        text = self._environment.get(name)
        if text is not None and self._includes < _INCLUDES_MAX:
            inner = _Parser(f"value = {text}", f"${name}", self._environment, self._includes + 1).document()
            assert isinstance(inner.data, dict)
            return self._value(inner.data["value"].data if "value" in inner.data else text, start)
        raise self._error(f"variable reference for '{name}' can not be found", start)

    # Characters

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _at_end(self) -> bool:
        return self._position >= len(self._text)

    def _at_comment(self) -> bool:
        return self._text.startswith(("#", "//"), self._position)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._position)
        assert found is not None
        return found

    def _skip(self, separators: str) -> None:
        """Skip blanks, line ends, comments and these separators."""
        while not self._at_end():
            if self._peek().isspace() or self._peek() in separators:
                self._position += 1
            elif self._at_comment():
                end = self._text.find("\n", self._position)
                self._position = len(self._text) if end < 0 else end
            else:
                return
