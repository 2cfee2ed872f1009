"""Errors of the API: made from the table, matched by class."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

from jetlake import errors
from jetlake.errors import ERROR_TABLE, ApiError, api_error, api_error_of


def test_the_table_is_whole_and_in_order() -> None:
    assert list(ERROR_TABLE) == list(range(10002, 10228))
    for err_code, row in ERROR_TABLE.items():
        assert row.err_code == err_code
        assert 400 <= row.code < 600
        assert row.template


def test_places_are_filled_in() -> None:
    error = api_error(10043, seq=7)
    assert (error.code, error.err_code, error.description) == (400, 10043, "sequence 7 not found")
    assert str(error) == "sequence 7 not found (code 400, err_code 10043)"
    assert api_error(10052, err="{braces} stay").description == "{braces} stay"


def test_an_open_place_or_an_unknown_code_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        api_error(10043)
    with pytest.raises(KeyError):
        api_error(1)


@pytest.mark.parametrize(
    ("err_code", "kind"),
    [
        (10003, errors.BadRequestError),
        (10013, errors.ConsumerNameInUseError),
        (10014, errors.ConsumerNotFoundError),
        (10037, errors.MessageNotFoundError),
        (10039, errors.JetStreamNotEnabledError),
        (10058, errors.StreamNameInUseError),
        (10059, errors.StreamNotFoundError),
        (10076, errors.JetStreamNotEnabledError),
        (10148, errors.ConsumerExistsError),
        (10149, errors.ConsumerDoesNotExistError),
        (10164, errors.WrongLastSequenceError),
        (10010, ApiError),
    ],
)
def test_codes_have_their_classes(err_code: int, kind: type[ApiError]) -> None:
    error = api_error(err_code)
    assert type(error) is kind
    assert isinstance(error, errors.JetlakeError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)


def test_what_was_not_found_has_a_family() -> None:
    for err_code in (10014, 10037, 10059):
        assert isinstance(api_error(err_code), errors.NotFoundError)


def test_codes_of_other_servers_are_taken_as_they_are() -> None:
    error = api_error_of(418, 19999, "from the future")
    assert type(error) is ApiError
    assert (error.code, error.err_code, error.description) == (418, 19999, "from the future")
    assert type(api_error_of(400, 10071, "wrong last sequence: 5")) is errors.WrongLastSequenceError


def test_the_tree_in_the_docstring_has_every_exception() -> None:
    drawn = errors.__doc__ or ""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.JetlakeError):
            assert f" {name}" in drawn, f"{name} is not drawn"
            assert name in errors.__all__


def _classes() -> list[type[errors.JetlakeError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.JetlakeError)]


# An argument for each annotation of a constructor.
_ARGUMENTS = {
    "str": "some words",
    "str | None": "words",
    "bytes | str": b"a..\xff",
    "bytes": b"payload",
    "int": 409,
    "int | None": 28,
    "bool": False,
    "float": 2.5,
    "dict[str, str]": {"nats://a:4222": "refused"},
    "list[tuple[str, Exception]]": [("a.b", errors.KeyNotFoundError("B", "k")), ("a.c", ValueError("other"))],
    "Sequence[int]": (3, 4),
}


def _example(kind: type[errors.JetlakeError]) -> errors.JetlakeError:
    if not inspect.isfunction(kind.__init__):
        return kind("what happened")
    positional, named = [], {}
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = _ARGUMENTS[parameter.annotation]
        else:
            positional.append(_ARGUMENTS[parameter.annotation])
    return kind(*positional, **named)


class _ErrorOfAnApplication(errors.PullStatusError):
    def __init__(self, status: int) -> None:
        super().__init__(status, "of an application")


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", [*_classes(), _ErrorOfAnApplication])
def test_every_error_survives_pickling_and_copying(
    kind: type[errors.JetlakeError], copied: Callable[[errors.JetlakeError], errors.JetlakeError]
) -> None:
    error = _example(kind)
    if isinstance(error, ApiError):
        error.request = "STREAM.INFO.ORDERS"
    error.add_note("while testing")
    again = copied(error)
    assert type(again) is kind and again is not error
    assert (str(again), again.__notes__) == (str(error), ["while testing"])
    assert list(map(repr, again.args)) == list(map(repr, error.args))
    assert {name: repr(value) for name, value in vars(again).items()} == {
        name: repr(value) for name, value in vars(error).items()
    }
