"""Draws the pages of `docs/reference/` that repeat what is data in the code, so that they cannot lie.

    python tools/render_reference.py

A test compares the pages with what this draws; run it again when the test says that a page is behind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jetlake.errors import ERROR_TABLE, api_error_of
from jetlake.model.api import API_ROWS, Body, Route

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"

_BODIES = {
    Body.EMPTY: "must be empty",
    Body.IGNORED: "not read",
    Body.STRICT: "{}, unknown fields refused",
    Body.LENIENT: "{}, unknown fields skipped",
}


def errors_page() -> str:
    """The error table with the exception that each row raises in the client."""
    lines = [
        "# Errors of the JetStream API",
        "",
        "A server that refuses a request answers with `error`: a `code` in the manner of HTTP, the `err_code` that",
        "names the reason, and a `description` for people. The client raises `jetlake.errors.ApiError` with these",
        "three as fields, or one of its subclasses where programs tell the case apart. Places in braces are filled",
        "in; where a description is only `{err}`, the reason differs from case to case.",
        "",
        "| err_code | code | description | raised as |",
        "|---|---|---|---|",
    ]
    for row in ERROR_TABLE.values():
        kind = type(api_error_of(row.code, row.err_code, "")).__name__
        description = row.template.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
        lines.append(f"| {row.err_code} | {row.code} | {description} | `{kind}` |")
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """The table of API subjects."""
    lines = [
        "# Subjects of the JetStream API",
        "",
        "All start with `$JS.API.`, or with `$JS.<domain>.API.` to reach a JetStream domain. The classes of requests",
        "and replies are in `jetlake.model.requests` and `jetlake.model.replies`, with every field's meaning, default",
        "and unit. Where there is no reply, messages come to the reply subject instead.",
        "",
        "| subject | request | reply |",
        "|---|---|---|",
    ]
    lines += [f"| `{_subject(route)}` | {_request(route)} | {_reply(route)} |" for route in API_ROWS]
    return "\n".join(lines) + "\n"


def _subject(route: Route) -> str:
    return ".".join((route.verb, *(f"<{name}>" if name != "rest" else "<rest…>" for name in route.names)))


def _request(route: Route) -> str:
    return _BODIES[route.body].format(f"`{route.request.__name__}`" if route.request else "")


def _reply(route: Route) -> str:
    return f"`{route.reply.__name__}`" if route.reply else "messages"


PAGES: dict[str, Callable[[], str]] = {"errors.md": errors_page, "api.md": api_page}


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, draw in PAGES.items():
        (REFERENCE / name).write_text(draw())
        print(f"docs/reference/{name}")


if __name__ == "__main__":
    main()
