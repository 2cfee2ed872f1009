"""JSON Schema: checks of payloads, and whether one schema takes every document of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from jetlake.errors import ConfigError

Json = Any
_ANNOTATIONS = {"$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description"}
_ANNOTATIONS |= {"examples", "readOnly", "title", "writeOnly", "$anchor"}
_ALL_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
# Bounds, each with whether a larger one takes less.
_BOUNDS = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"), True),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains"), False),
}
_COMPARED = {"type", "enum", "const", "required", "properties", "additionalProperties", "items", "$ref", *_BOUNDS}


def parse_json_schema(text: str) -> Json:
    """Return a JSON Schema.

    Raises:
        ConfigError: it is no JSON, no valid schema, or jsonschema is not installed.
    """
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"the JSON Schema is not valid JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise ConfigError("the JSON Schema is an object, or true or false")
    jsonschema = _library()
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"the JSON Schema is not valid at {error.json_path}: {error.message}") from None
    return schema


def json_check(text: str) -> Callable[[bytes], None]:
    """Return a function that raises a ValueError with the reason for a payload that does not fit.

    References to other documents are not followed.

    Raises:
        ConfigError: as in `parse_json_schema`.
    """
    schema = parse_json_schema(text)
    jsonschema = _library()
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, registry=Registry())

    def check(payload: bytes) -> None:
        try:
            value = msgspec.json.decode(payload)
            error = next(validator.iter_errors(value), None)
        except (msgspec.DecodeError, UnicodeDecodeError) as broken:
            raise ValueError(f"it is not valid JSON: {broken}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except Unresolvable as unknown:
            raise ValueError(f"the schema refers to {unknown.ref}, which is not part of it") from None
        if error is not None:
            raise ValueError(f"{error.json_path}: {error.message:.300}")

    return check


def _library() -> Any:
    try:
        import jsonschema
    except ImportError:
        raise ConfigError("JSON Schema needs jsonschema: install jetlake[schemas]") from None
    return jsonschema


def resolved(schema: Json, root: Json) -> Json:
    """Return the schema that a reference within the document leads to, or the schema itself.

    Raises:
        ConfigError: it leads out of the document or nowhere.
    """
    followed: set[str] = set()
    while isinstance(schema, dict) and "$ref" in schema:
        reference = schema["$ref"]
        if not reference.startswith("#") or reference in followed:
            raise ConfigError(f"the JSON Schema: $ref {reference!r} leads to no part of the same document")
        followed.add(reference)
        schema = root
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(schema, dict) or name not in schema:
                raise ConfigError(f"the JSON Schema: $ref {reference!r} leads to no part of the same document")
            schema = schema[name]
    return schema


def json_breach(old: Json, new: Json) -> str:
    """Return why a document of the old schema may not fit the new one; empty when every one does.

    Optional properties that the old schema does not name count as absent, as intended when one is added. Where a
    keyword's meaning cannot be compared, an unequal one is a breach.
    """
    return _breach(old, new, "$", (old, new), frozenset())


def _breach(old: Json, new: Json, path: str, roots: tuple[Json, Json], above: frozenset[tuple[str, str]]) -> str:
    pair = _reference(old), _reference(new)
    if any(pair):
        if pair in above:
            return ""
        above |= {pair}
    old, new = resolved(old, roots[0]), resolved(new, roots[1])
    if new is True or new == {} or old is False:
        return ""
    if new is False:
        return f"{path} takes nothing"
    old = {} if old is True else old
    return (
        _values_breach(old, new, path)
        or _bounds_breach(old, new, path)
        or _object_breach(old, new, path, roots, above)
        or _items_breach(old, new, path, roots, above)
        or _others_breach(old, new, path)
    )


def _reference(schema: Json) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, dict) else ""


def json_types(schema: Json) -> frozenset[str]:
    """Return the names of the types that a schema takes."""
    named = schema.get("type")
    if named is None:
        return _ALL_TYPES
    return frozenset([named] if isinstance(named, str) else named)


def _values_breach(old: Json, new: Json, path: str) -> str:
    before, after = json_types(old), json_types(new)
    if "number" in after:
        after |= {"integer"}
    if before - after:
        return f"{path} was {' or '.join(sorted(before))} and is {' or '.join(sorted(after))}"
    taken = _listed(new)
    if taken is not None:
        given = _listed(old)
        gone = [value for value in given or () if value not in taken]
        if given is None or gone:
            return f"{path} takes {gone[0]!r} no more" if gone else f"{path} takes listed values only"
    return ""


def _listed(schema: Json) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    listed: list[Any] | None = schema.get("enum")
    return listed


def _bounds_breach(old: Json, new: Json, path: str) -> str:
    for name, larger_takes_less in _BOUNDS.items():
        if name not in new:
            continue
        if name not in old:
            return f"{path} has a {name} of {new[name]}"
        if (new[name] > old[name]) if larger_takes_less else (new[name] < old[name]):
            return f"{path} had a {name} of {old[name]} and has {new[name]}"
    return ""


def _object_breach(old: Json, new: Json, path: str, roots: tuple[Json, Json], above: frozenset[tuple[str, str]]) -> str:
    for name in new.get("required", ()):
        if name not in old.get("required", ()):
            return f"{path}.{name} is required"
    before, after = old.get("properties", {}), new.get("properties", {})
    other_before, other_after = old.get("additionalProperties", True), new.get("additionalProperties", True)
    for name, schema in before.items():
        reason = _breach(schema, after.get(name, other_after), f"{path}.{name}", roots, above)
        if reason:
            return reason
    return _breach(other_before, other_after, f"{path}.*", roots, above)


def _items_breach(old: Json, new: Json, path: str, roots: tuple[Json, Json], above: frozenset[tuple[str, str]]) -> str:
    if "items" not in new or "array" not in json_types(old):
        return ""
    return _breach(old.get("items", True), new["items"], f"{path}[]", roots, above)


def _others_breach(old: Json, new: Json, path: str) -> str:
    for name in new:
        if name not in _COMPARED and name not in _ANNOTATIONS and old.get(name) != new[name]:
            return f"{path} has another {name}"
    if old.get("patternProperties") != new.get("patternProperties"):
        return f"{path} has other patternProperties"
    return ""
