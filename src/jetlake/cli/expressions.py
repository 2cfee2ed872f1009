"""The expressions of `find --expression`: comparisons and logic over the fields of a stream or consumer as in its JSON.

::

    expression := or ; or := and (("||" | "or") and)* ; and := not (("&&" | "and") not)*
    not        := ("!" | "not") not | comparison
    comparison := sum (("==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not in" | "contains" | "startsWith" | "endsWith"
                  | "matches") sum)?
    sum        := product (("+" | "-") product)* ; product := value (("*" | "/" | "%") value)*
    value      := "-" value | primary ("." name | "[" expression "]")*
    primary    := number | "text" | 'text' | true | false | nil | "[" list "]" | "(" expression ")"
                  | "len" "(" expression ")" | name

A field that is absent is nil, as in the `expr` language that `nats` uses.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from jetlake.errors import ConfigError

__all__ = ["compile_expression"]

Value = Callable[[Mapping[str, Any]], Any]
"""A part of an expression: given the names, its value."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<name>[A-Za-z_$][\w$]*)"""
    r"""|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!.,()\[\]?]))"""
)
_DEPTH_MAX = 100
_WORDS = {"true": True, "false": False, "nil": None, "null": None}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda a, b: b is not None and a in b,
    "not in": lambda a, b: b is None or a not in b,
    "contains": lambda a, b: a is not None and b in a,
    "startsWith": lambda a, b: str(a or "").startswith(b),
    "endsWith": lambda a, b: str(a or "").endswith(b),
    "matches": lambda a, b: re.search(b, str(a or "")) is not None,
}
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {"*": operator.mul, "/": operator.truediv, "%": operator.mod}


def compile_expression(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that says whether an expression holds for some names.

    Raises:
        ConfigError: the text is no expression; also by the function, when its values can't be compared.
    """
    parser = _Parser(text)
    whole = parser.parse()

    def holds(names: Mapping[str, Any]) -> bool:
        try:
            result = whole(names)
        except (TypeError, ValueError, ZeroDivisionError, re.error, KeyError, IndexError) as error:
            raise ConfigError(f"expression {text!r}: {error}") from None
        if not isinstance(result, bool):
            raise ConfigError(f"expression {text!r} must be true or false; it is {result!r}")
        return result

    return holds


class _Parser:
    """Reads an expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._at = 0
        self._depth = 0
        end = 0
        while rest := text[end:].strip():
            found = _TOKEN.match(text, end)
            if found is None:
                raise ConfigError(f"expression {text!r}: unexpected {rest[:20]!r}")
            self._tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            end = found.end()

    def parse(self) -> Value:
        """Return the whole expression."""
        whole = self._or()
        if self._at < len(self._tokens):
            self._refuse()
        return whole

    def _peek(self) -> str:
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        return "" if kind == "text" else token

    def _take(self, *wanted: str) -> str:
        """Return the next token and move on if it is one of these; an empty text otherwise."""
        token = self._peek()
        if token and token in wanted:
            self._at += 1
            return token
        return ""

    def _need(self, token: str) -> None:
        if not self._take(token):
            self._refuse(f"expected {token!r}")

    def _refuse(self, reason: str = "") -> None:
        found = self._tokens[self._at][1] if self._at < len(self._tokens) else "the end"
        raise ConfigError(f"expression {self._text!r}: unexpected {found!r}{', ' if reason else ''}{reason}")

    def _or(self) -> Value:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ConfigError("the expression is nested too deeply")
        parts = [self._and()]
        while self._take("||", "or"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else lambda names: any(bool(part(names)) for part in parts)

    def _and(self) -> Value:
        parts = [self._not()]
        while self._take("&&", "and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else lambda names: all(bool(part(names)) for part in parts)

    def _not(self) -> Value:
        negations = 0
        while self._take("!", "not"):
            negations += 1
        inner = self._comparison()
        return inner if not negations else lambda names: bool(inner(names)) is (negations % 2 == 0)

    def _comparison(self) -> Value:
        left = self._chain(_SUMS, lambda: self._chain(_PRODUCTS, self._value))
        sign = self._take(*_COMPARISONS, "not")
        if sign == "not":
            self._need("in")
            sign = "not in"
        if not sign:
            return left
        right, compare = self._chain(_SUMS, lambda: self._chain(_PRODUCTS, self._value)), _COMPARISONS[sign]
        return lambda names: compare(left(names), right(names))

    def _chain(self, signs: Mapping[str, Callable[[Any, Any], Any]], part: Callable[[], Value]) -> Value:
        value = part()
        while sign := self._take(*signs):
            value = _applied(signs[sign], value, part())
        return value

    def _value(self) -> Value:
        if self._take("-"):
            inner = self._value()
            return lambda names: -inner(names)
        value = self._primary()
        while sign := self._take(".", "[", "?"):
            if sign == "?":
                continue
            if sign == ".":
                kind, name = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
                if kind != "name":
                    self._refuse("expected the name of a field")
                self._at += 1
                value = _field(value, name)
            else:
                index = self._or()
                self._need("]")
                value = _item(value, index)
        return value

    def _primary(self) -> Value:
        kind, token = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if self._take("("):
            inner = self._or()
            self._need(")")
            return inner
        if self._take("["):
            parts: list[Value] = []
            while not self._take("]"):
                parts.append(self._or())
                if not self._take(",") and self._peek() != "]":
                    self._refuse("expected ']'")
            return lambda names: [part(names) for part in parts]
        if kind not in ("number", "text", "name"):
            self._refuse()
        self._at += 1
        if kind == "number":
            number = float(token) if "." in token else int(token)
            return lambda names: number
        if kind == "text":
            text = re.sub(r"\\(.)", r"\1", token[1:-1])
            return lambda names: text
        if token == "len" and self._take("("):
            inner = self._or()
            self._need(")")
            return lambda names: len(inner(names) or ())
        return (lambda names: _WORDS[token]) if token in _WORDS else _name(token)


def _applied(function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    return lambda names: function(left(names), right(names))


def _name(name: str) -> Value:
    def look_up(names: Mapping[str, Any]) -> Any:
        if name not in names:
            raise ValueError(f"unknown name {name!r}; use one of {', '.join(names)}")
        return names[name]

    return look_up


def _field(value: Value, name: str) -> Value:
    def look_up(names: Mapping[str, Any]) -> Any:
        found = value(names)
        return found.get(name) if isinstance(found, dict) else None

    return look_up


def _item(value: Value, index: Value) -> Value:
    def look_up(names: Mapping[str, Any]) -> Any:
        found, key = value(names), index(names)
        return found.get(key) if isinstance(found, dict) else found[key]

    return look_up
