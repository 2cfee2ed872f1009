"""Refusals of a server name what they are about and say what to do."""

from __future__ import annotations

import pytest

from jetlake.cli.session import refusal
from jetlake.errors import api_error


@pytest.mark.parametrize(
    ("err_code", "request_made", "text"),
    [
        (10059, "STREAM.INFO.NOPE", "stream NOPE not found (10059). List them: jetlake stream ls"),
        (10059, "STREAM.INFO.KV_prices", "bucket prices not found (10059). List them: jetlake kv ls"),
        (10059, "STREAM.INFO.OBJ_files", "object store files not found (10059). List them: jetlake object ls"),
        (10059, "", "stream not found (10059)"),
        (
            10014,
            "CONSUMER.INFO.ORDERS.NOPE",
            "consumer NOPE not found on stream ORDERS (10014). List them: jetlake consumer ls ORDERS",
        ),
        (10037, "STREAM.MSG.GET.ORDERS", "stream ORDERS: no message found (10037)"),
        (
            10148,
            "CONSUMER.CREATE.ORDERS.C.orders.new",
            "consumer ORDERS > C: consumer already exists (10148). Hint: change the one that exists, by "
            "update_consumer or create_or_update_consumer, or `jetlake consumer edit`",
        ),
        (10077, "$KV.prices.tea.green", "prices > tea.green: message too large (10077)"),
        (10077, "$O.files.C.nuid", "object store files: message too large (10077)"),
        (10060, "orders.new", "orders.new: expected stream does not match (10060)"),
    ],
)
def test_a_refusal_names_what_it_is_about(err_code, request_made, text):
    error = api_error(err_code, err="message too large")
    error.request = request_made
    assert refusal(error) == text


@pytest.mark.parametrize(
    ("err_code", "key"), [(10023, "max_file_store"), (10047, "max_file_store"), (10028, "max_memory_store")]
)
def test_a_full_store_says_what_is_full_and_what_to_do(err_code, key):
    error = api_error(err_code)
    assert key in refusal(error)
    assert key in str(error)
    assert "purge" in refusal(error) or "lower the max_bytes" in refusal(error)
