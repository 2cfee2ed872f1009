"""YAML that remembers its lines: sections whose every complaint names file and line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped, unused-ignore]

from jetlake.client.tables.options.option_values import names
from jetlake.errors import ConfigError

__all__ = ["Section", "Text", "read_yaml"]


class Text(str):
    """A text that knows where it stands: `line` is the file's line on which its own first line is."""

    line: int

    def __new__(cls, value: str, line: int) -> Text:
        text = super().__new__(cls, value)
        text.line = line
        return text


class Section:
    """A mapping of a file; what is asked for is checked, and what nobody asks for is refused by `finish`."""

    def __init__(self, file: str, node: yaml.MappingNode, line: int) -> None:
        self.file = file
        self.line = line
        self._entries: dict[str, tuple[int, yaml.Node]] = {}
        self._asked: list[str] = []
        for key, value in node.value:
            name = str(key.value)
            at = key.start_mark.line + 1
            if name in self._entries:
                self.fail(f"{name} stands here a second time", at)
            self._entries[name] = (at, value)

    def fail(self, text: str, line: int | None = None) -> NoReturn:
        """Complain.

        Raises:
            ConfigError: always, with file and line.
        """
        raise ConfigError(f"{self.file}:{self.line if line is None else line}: {text}")

    def line_of(self, key: str) -> int:
        """Return the line of a key, or of the section when it is not there."""
        return self._entries[key][0] if key in self._entries else self.line

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def _take(self, key: str) -> yaml.Node | None:
        self._asked.append(key)
        return self._entries[key][1] if key in self._entries else None

    def text(self, key: str, default: str | None = None) -> Text:
        """Return a text; required without a default."""
        node = self._take(key)
        if node is None:
            if default is None:
                self.fail(f"{key} is missing")
            return Text(default, self.line)
        if not isinstance(node, yaml.ScalarNode) or node.value == "":
            self.fail(f"{key} must be a text", self.line_of(key))
        return _text(node)

    def choice(self, key: str, words: tuple[str, ...], default: str) -> str:
        """Return one of these words."""
        value = self.text(key, default)
        if value not in words:
            self.fail(f"{key} is {value!r}, but must be one of {', '.join(words)}", self.line_of(key))
        return str(value)

    def texts(self, key: str) -> tuple[Text, ...]:
        """Return a list of texts, or one text alone; none when it is not there."""
        node = self._take(key)
        if node is None:
            return ()
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for item in nodes:
            if not isinstance(item, yaml.ScalarNode) or item.value == "":
                self.fail(f"{key} must be a list of texts", item.start_mark.line + 1)
        return tuple(_text(item) for item in nodes)

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names; in one text alone commas separate them, as in an option."""
        items = tuple(str(item) for item in self.texts(key))
        if not isinstance(self._take(key), yaml.ScalarNode):
            return items
        try:
            return names(items[0])
        except ValueError as error:
            self.fail(f"{key} {items[0]!r} can't be used: {error}", self.line_of(key))

    def section(self, key: str) -> Section | None:
        """Return a mapping inside; None when it is not there."""
        node = self._take(key)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            self.fail(f"{key} must hold names and values", self.line_of(key))
        return Section(self.file, node, self.line_of(key))

    def sections(self, key: str) -> list[Section]:
        """Return a list of mappings; empty when it is not there."""
        node = self._take(key)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.fail(f"{key} must be a list, with a dash before each entry", self.line_of(key))
        found = []
        for item in node.value:
            at = item.start_mark.line + 1
            if not isinstance(item, yaml.MappingNode):
                self.fail(f"an entry of {key} must hold names and values", at)
            found.append(Section(self.file, item, at))
        return found

    def named_sections(self) -> Iterator[tuple[Text, Section]]:
        """Yield all entries of this mapping as sections, with their names."""
        for name, (line, node) in self._entries.items():
            self._asked.append(name)
            if not isinstance(node, yaml.MappingNode):
                self.fail(f"{name} must hold names and values", line)
            yield Text(name, line), Section(self.file, node, line)

    def finish(self) -> None:
        """Refuse what nobody asked for.

        Raises:
            ConfigError: an unknown key, with the one that may be meant.
        """
        for key, (line, _) in self._entries.items():
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(set(self._asked)))}"
                self.fail(f"{key} is unknown; {hint}", line)


def _text(node: yaml.ScalarNode) -> Text:
    # A block begins below the line with its | or >.
    return Text(node.value, node.start_mark.line + (2 if node.style in ("|", ">") else 1))


def read_yaml(file: str, content: str) -> Section:
    """Return the file's outermost mapping.

    Raises:
        ConfigError: it is no YAML, or no mapping.
    """
    try:
        node: Any = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{file}:{line}: this is no YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}:1: this is no YAML: {error}") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{file}:1: the file must hold names and values (name, sources, steps, sinks)")
    return Section(file, node, 1)
