"""What went wrong is a sentence with a status that tells whose fault it was."""

from __future__ import annotations

import json

import pytest
from starlette.requests import Request

from jetlake.dashboard.web import explain, json_answer, sentence
from jetlake.errors import (
    ApiError,
    BadHeaderError,
    BadSubjectError,
    ConfigError,
    ConsumerNotFoundError,
    InvalidOptionError,
    JetlakeError,
    MessageNotFoundError,
    PermissionsError,
    StreamNotFoundError,
)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidOptionError("no"), 400),
        (ConfigError("no"), 400),
        (BadHeaderError("no"), 400),
        (BadSubjectError("a b", "no"), 400),
        (ApiError(400, 10025, "invalid JSON"), 400),
        (PermissionsError("no"), 403),
        (StreamNotFoundError(404, 10059, "stream not found"), 404),
        (ApiError(503, 10023, "insufficient resources"), 502),
        (JetlakeError("no"), 502),
    ],
)
async def test_statuses(error, status):
    answer = await explain(Request({"type": "http"}), error)
    text = f"{error.description} ({error.err_code})" if isinstance(error, ApiError) else str(error)
    assert answer.status_code == status
    assert json.loads(answer.body)["error"].startswith(text)  # a hint may follow


@pytest.mark.parametrize(
    ("kind", "request_", "text"),
    [
        (StreamNotFoundError, "STREAM.INFO.NOPE", "Stream NOPE not found; it may have been deleted."),
        (ConsumerNotFoundError, "CONSUMER.INFO.S.C", "Consumer C of stream S not found; it may have been deleted."),
        (MessageNotFoundError, "STREAM.MSG.GET.S", "Stream S does not hold this message; it may have been deleted."),
        (ApiError, "CONSUMER.CREATE.S.C", "S > C: no (1)"),
        (ApiError, "STREAM.CREATE.S", "S: no (1)"),
        (ApiError, "orders.new", "no (1)"),
    ],
)
def test_a_refusal_names_what_it_is_about(kind, request_, text):
    error = kind(400, 1, "no")
    error.request = request_
    assert sentence(error) == text


def test_names_that_are_not_utf_8_are_shown_with_escapes():
    subject = b"a.\xff".decode("utf-8", "surrogateescape")
    answer = json_answer({"rows": [{"subject": subject, "headers": (("K", subject),)}]})
    assert json.loads(answer.body) == {"rows": [{"subject": "a.\\udcff", "headers": [["K", "a.\\udcff"]]}]}
