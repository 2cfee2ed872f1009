"""What went wrong is a sentence with a status that tells whose fault it was."""

from __future__ import annotations

import json

import pytest
from starlette.requests import Request

from jetlake.dashboard.web import explain
from jetlake.errors import (
    ApiError,
    BadHeaderError,
    BadSubjectError,
    ConfigError,
    InvalidOptionError,
    JetlakeError,
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
    assert (answer.status_code, json.loads(answer.body)) == (status, {"error": str(error)})
