"""Configurations of streams and consumers: read from JSON files, and changed by options."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, convert, structs, to_builtins

from jetlake.cli.keyboard import read_standard_input
from jetlake.errors import ConfigError, DecodeError
from jetlake.model.encoding.codec import decode_strict

__all__ = ["read_config", "with_fields"]

ConfigT = TypeVar("ConfigT", bound=Struct)

_UNKNOWN = re.compile(r'unknown field "(.*)"')


def read_config(file: str, kind: type[ConfigT]) -> ConfigT:
    """Read a configuration from a JSON file, or from standard input for `-`.

    Raises:
        ConfigError: the file can't be read, or is not such a configuration.
    """
    try:
        return decode_strict(kind, read_standard_input() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except DecodeError as error:
        raise ConfigError(f"{file}: {error}{_suggestion(str(error), kind)}") from None


def _suggestion(reason: str, kind: type[Struct]) -> str:
    unknown = _UNKNOWN.search(reason)
    names = [field.encode_name for field in structs.fields(kind)]
    near = difflib.get_close_matches(unknown[1], names, 1) if unknown else []
    return f"; did you mean {near[0]!r}?" if near else ""


def with_fields(config: ConfigT, fields: dict[str, Any]) -> ConfigT:
    """Return the configuration with these fields in the place of its own.

    Raises:
        ConfigError: a field can't hold its value.
    """
    try:
        return convert({**to_builtins(config), **fields}, type(config))
    except ValidationError as error:
        raise ConfigError(f"{type(config).__name__}: {error}") from None
