"""`jetlake errors …`: what the error codes of the JetStream API mean."""

from __future__ import annotations

import re

import click

from jetlake.cli import output
from jetlake.cli.session import EXIT_USAGE, fail, json_option
from jetlake.cli.shared_options import SharedGroup
from jetlake.errors_table import ERROR_TABLE, HINTS


@click.group(cls=SharedGroup)
def errors() -> None:
    """Look up the error codes of the JetStream API."""


@errors.command("ls", example="jetlake errors ls consumer")
@click.argument("match", required=False)
@click.argument("sort", type=click.Choice(["code", "http", "description"]), default="code")
@click.option("-R", "--reverse", is_flag=True, help="Reverse the order.")
@json_option
def list_errors(match: str | None, sort: str, reverse: bool, as_json: bool) -> None:
    """List the errors whose code or description matches MATCH, a regular expression."""
    try:
        pattern = re.compile(match or "", re.IGNORECASE)
    except re.error as error:
        fail(f"{match}: {error}", EXIT_USAGE)
    keys = {"code": "err_code", "http": "code", "description": "template"}
    rows = [row for row in ERROR_TABLE.values() if any(pattern.search(str(part)) for part in row)]
    rows.sort(key=lambda row: str(getattr(row, keys[sort])), reverse=reverse)
    if as_json:
        output.print_json([{"error_code": row.err_code, "code": row.code, "description": row.template} for row in rows])
    elif not rows:
        fail(f"no errors match {match!r}")
    else:
        output.print_table(
            "NATS Errors",
            ["NATS Code", "HTTP Error Code", "Description"],
            [[row.err_code, row.code, row.template] for row in rows],
            numbers=[0, 1],
        )


@errors.command("lookup", example="jetlake errors lookup 10059")
@click.argument("code", type=int)
@json_option
def lookup(code: int, as_json: bool) -> None:
    """Explain error CODE, and say what to do."""
    row = ERROR_TABLE.get(code)
    if row is None:
        fail(f"no error has code {code}. List them: jetlake errors ls")
    hint = HINTS.get(code, "")
    if as_json:
        output.print_json({"error_code": code, "code": row.code, "description": row.template, "hint": hint})
        return
    output.print_facts(
        f"NATS Error Code: {code}", {"": [("Description", row.template), ("HTTP Code", row.code), ("Hint", hint)]}
    )
