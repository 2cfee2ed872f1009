"""The query of a monitoring request: keys with typed values."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from msgspec import DecodeError
from msgspec.json import decode

__all__ = ["BadQueryError", "Query"]


class BadQueryError(ValueError):
    """A key of the query has an invalid value; the request is answered with 400."""


# Keys that requests over NATS spell differently from those over HTTP.
_SPELLINGS = {"subscriptions": "subs", "account": "acc", "consumer": "consumers"}


class Query:
    """The keys and values of a query string; of a key given twice the first counts."""

    def __init__(self, text: str = "") -> None:
        try:
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise BadQueryError("too many keys in the query") from None
        self._values: dict[str, str] = {}
        for key, value in pairs:
            self._values.setdefault(key, value)

    @classmethod
    def from_json(cls, body: bytes) -> Query:
        """Read the JSON object of a request over NATS; an empty body is an empty query."""
        query = cls()
        if not body.strip():
            return query
        try:
            given = decode(body, type=dict[str, Any])
        except (DecodeError, RecursionError):
            raise BadQueryError("the request is not a JSON object") from None
        for key, value in given.items():
            text = ("1" if value else "0") if isinstance(value, bool) else str(value)
            query._values[key] = text
            query._values.setdefault(_SPELLINGS.get(key, key), text)
        if given.get("subscriptions_detail"):
            query._values["subs"] = "detail"
        return query

    def narrowed(self, **values: str) -> Query:
        """Copy the query with these keys replaced."""
        query = Query()
        query._values = {**self._values, **values}
        return query

    def text(self, name: str) -> str:
        """Read a value as text; empty when the key is missing."""
        return self._values.get(name, "")

    def flag(self, name: str) -> bool:
        """Read a boolean, `1`, `true` and the like; false when the key is missing."""
        value = self._values.get(name, "").lower()
        if value in ("1", "t", "true"):
            return True
        if value in ("", "0", "f", "false"):
            return False
        raise BadQueryError(f"Error decoding boolean for '{name}': \"{value}\"")

    def number(self, name: str, default: int) -> int:
        """Read a whole number that is not negative."""
        value = self._values.get(name, "")
        if not value:
            return default
        if not value.isdecimal() or len(value) > 18:
            raise BadQueryError(f"Error decoding int for '{name}': \"{value}\"")
        return int(value)

    def page(self, limit_default: int) -> tuple[int, int]:
        """Read where a page begins and how many items it has; a negative number counts as missing."""
        return self._unless_negative("offset", 0), self._unless_negative("limit", limit_default)

    def _unless_negative(self, name: str, default: int) -> int:
        value = self._values.get(name, "")
        return default if value[:1] == "-" and value[1:].isdecimal() else self.number(name, default)
