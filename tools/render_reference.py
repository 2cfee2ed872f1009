"""Draws the pages of `docs/reference/` that repeat what is data in the code, so that they cannot lie.

    python tools/render_reference.py

A test compares the pages with what this draws; run it again when the test says that a page is behind.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import click

from jetlake.cli.app import app
from jetlake.errors import ERROR_TABLE, api_error_of
from jetlake.model import consumer, stream
from jetlake.model.api import API_ROWS, Body, Route
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.stream import ConsumerLimits, StreamConfig, StreamSource
from jetlake.server.config.flags import FLAGS
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.options.option_table import describe
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.schema import COLUMNS
from jetlake.spark.sink.row_encoder import SINK_COLUMNS

sys.path.insert(0, str(Path(__file__).parent))
import configuration_keys  # A page's data that stands beside this file.

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"

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


def configuration_page() -> str:
    """Every key of the configuration file, and every field of streams and consumers with its words in the code."""
    lines = [
        "# Configuration",
        "",
        "First the keys of the server's configuration file, then the fields of [streams and consumers](#streamconfig).",
        "",
        "## The configuration file",
        "",
        "`jetlake serve -c FILE` reads the file of nats-server: the same syntax, the same keys. All keys that",
        "nats-server 2.15.1 knows are listed here, with all their names. A key *works*; or it is *refused*, and the",
        "server does not start, because ignoring it would admit clients or lose data; or it is",
        "*ignored* with a warning in the log, because nothing depends on it. An unknown key is refused.",
        "`jetlake serve -t -c FILE` checks a file without starting; a test compares these tables with",
        "its output, and with that of `nats-server -t`.",
        "Why clusters, gateways and MQTT are refused has [a page](../single-node.md).",
        "",
        "One key is this server's own: `index_cache` in `jetstream`, the memory for the index of full segments.",
    ]
    for section in configuration_keys.SECTIONS:
        lines += ["", f"### {section.title}", "", "| key | what it is for | here |", "|---|---|---|"]
        for key in section.keys:
            names = ", ".join(f"`{name}`" for name in key.names.split(", "))
            outcome = configuration_keys.outcome_of(section, key)
            here = f"{outcome.kind}: {outcome.reason}" if outcome.reason else outcome.kind
            lines.append(f"| {names} | {_cell(key.meaning)} | {_cell(here)} |")
    lines += [
        "",
        "## Streams and consumers",
        "",
        "The names are those of the wire. As keyword arguments of the client durations are seconds or `timedelta`; on",
        "the wire and on the values of `jetlake.model` they are nanoseconds. A field that is left out has its default.",
    ]
    for kind, module in (
        (StreamConfig, stream),
        (ConsumerLimits, stream),
        (StreamSource, stream),
        (ConsumerConfig, consumer),
    ):
        lines += ["", f"## {kind.__name__}", "", (kind.__doc__ or "").split("\n\n")[0], ""]
        lines += ["| field | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(text)} |" for name, text in _field_texts(module, kind.__name__)]
    return "\n".join(lines) + "\n"


def _field_texts(module: ModuleType, class_name: str) -> list[tuple[str, str]]:
    """The fields of a class with the string that follows each."""
    tree = ast.parse(Path(module.__file__ or "").read_text())
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name]
    found = []
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found.append((field.target.id, ast.literal_eval(text.value)))
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def command_page() -> str:
    """The tree of commands with their options."""
    lines = [
        "# The `jetlake` command",
        "",
        "Every command takes `--help`. Options of `jetlake` itself come before the command:",
        "`jetlake -s nats://host:4222 stream ls`. Exit codes: 0 done, 1 refused or failed, 2 usage error,",
        "3 no server, 130 interrupted.",
        "",
        "`jetlake serve` takes nats-server's flags: see [serve.md](serve.md).",
    ]
    context = click.Context(app, info_name="jetlake")
    _add_command(lines, context, "jetlake", app)
    _add_comparison(lines, context)
    return "\n".join(lines) + "\n"


_SPELLED = {
    "auth operator add": "auth operator",
    "auth operator list": "auth ls",
    "auth account add": "auth account",
    "auth account edit": "auth account",
    "auth account ls": "auth ls",
    "auth account push": "auth push",
    "auth account keys add": "auth key",
    "auth user add": "auth user",
    "auth user ls": "auth ls",
    "auth nkey verify": "auth nkey check",
}
"""Commands of `nats` that have other words here."""

_BY_NSC = "with `nsc`, whose folder `--folder` reads and writes"
_INSTEAD = {
    "auth operator info": "`jetlake auth show FILE`",
    "auth operator edit": _BY_NSC,
    "auth operator import": "copy the files into the folder",
    "auth operator generate": "`jetlake auth config`",
    **dict.fromkeys(("auth operator keys list", "auth operator keys add", "auth operator keys rm"), _BY_NSC),
    "auth account info": "`jetlake auth show FILE`",
    "auth account rm": _BY_NSC,
    "auth account query": _BY_NSC,
    **{
        f"auth account {kind} {verb}": _BY_NSC
        for kind in ("imports", "exports")
        for verb in ("add", "info", "edit", "ls", "rm")
    },
    **dict.fromkeys(("auth account keys info", "auth account keys ls"), "`jetlake auth show FILE`"),
    "auth account keys rm": _BY_NSC,
    "auth user info": "`jetlake auth show FILE`",
    "auth user edit": "`jetlake auth user` again: a user that exists gets a new token",
    "auth user rm": "`jetlake auth revoke`",
    "auth user credential": "`jetlake auth user` writes it",
    **dict.fromkeys(("auth nkey seal", "auth nkey unseal"), "`nats auth nkey` needs no server"),
    "errors edit": "edits the source of nats-server's error codes",
    "errors validate": "checks the source of nats-server's error codes",
    "plugins register": "the command has no plugins",
    "server cluster balance": "in each account: `jetlake stream cluster balance`",
    "server generate": "`jetlake serve` needs no file; [serve.md](serve.md) lists its flags",
}
"""What takes the place of a command of `nats` that is not here."""


_LIMITS = "`--storage`, `--memory` and `--streams` limit JetStream; for other limits use `nsc`"
_REASONS = {
    "auth operator add": _BY_NSC,
    "auth operator list": "it lists all",
    "auth account add": _LIMITS,
    "auth account edit": _LIMITS,
    "auth account ls": "it lists all",
    "auth account push": "`jetlake auth show FILE` shows it",
    "auth account keys add": "`--publish` and `--subscribe` allow subjects; for limits use `nsc`",
    "auth user add": "`--publish` and `--subscribe` allow subjects; for limits use `nsc`",
    "auth user ls": "it lists all",
    "auth nkey gen": "it prints both keys",
    "every command": "no SOCKS proxies, no imported events, no colors in tables",
    "account tls": "Python's TLS does not hand over the stapled answer",
}
"""Why an option of `nats` is not here."""


def _add_comparison(lines: list[str], context: click.Context) -> None:
    """Compare the commands of natscli, which a file lists, with the tree of commands."""
    lines += [
        "",
        "## Compared with `nats`",
        "",
        "Every command of natscli 0.4 that its help lists, by its name there and here, and the options of it that are",
        "not here. Short and other names (`str`, `con`, `new`, `del`, `nfo` …) work too.",
        "",
        "| `nats` | `jetlake` | options that are not here |",
        "|---|---|---|",
    ]
    for text in (ROOT / "tools" / "natscli.txt").read_text().splitlines():
        if not text.startswith("#"):
            words = [word for word in text.split() if not word.startswith("--")]
            options = [word for word in text.split() if word.startswith("--")]
            lines.append(_comparison(context, words, options))


def _comparison(context: click.Context, words: list[str], options: list[str]) -> str:
    name = " ".join(words) or "every command"
    words = _SPELLED.get(name, name).split() if words else []
    found = _found(context, words)
    if found is None:
        return f"| `{name}` | not here | {_INSTEAD.get(name, '')} |"
    known = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}
    # The options that groups take for their commands.
    known |= {name for param in _found_group_params(context, words) for name in param.opts}
    missing = ", ".join(f"`{option}`" for option in options if option not in known)
    if missing and name in _REASONS:
        missing += f": {_REASONS[name]}"
    here = f"`{' '.join(_full_path(context, words))}`" if words else "every command"
    return f"| {f'`{name}`' if words else name} | {here} | {missing} |"


def _found(context: click.Context, words: list[str]) -> click.Command | None:
    command: click.Command | None = app
    for word in words:
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
    return command


def _found_group_params(context: click.Context, words: list[str]) -> list[click.Parameter]:
    groups = (_found(context, words[:count]) for count in range(1, len(words)))
    return [param for group in groups if group is not None for param in group.params]


def _full_path(context: click.Context, words: list[str]) -> list[str]:
    """Return the words as `jetlake` lists them, for a short name may stand for another."""
    full = ["jetlake"]
    command: click.Command | None = app
    for word in words:
        assert isinstance(command, click.Group)
        inner = command.get_command(context, word)
        known = [name for name in command.list_commands(context) if command.get_command(context, name) is inner]
        full.append(word if word in known or not known else known[0])
        command = inner
    return full


def _add_command(lines: list[str], context: click.Context, path: str, command: click.Command) -> None:
    lines += ["", f"## `{path}`", "", _cell(command.get_short_help_str(300))]
    words = [parameter.make_metavar(context) for parameter in command.params if isinstance(parameter, click.Argument)]
    if words:
        lines += ["", f"`{path} {' '.join(words)}`"]
    if getattr(command, "example", ""):
        lines += ["", "```sh", command.example, "```"]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        lines += ["", "| option | meaning |", "|---|---|"]
        for option in options:
            spelled = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            lines.append(f"| {spelled} | {_cell(option.help or '')} |")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and name != "serve":
                _add_command(lines, context, f"{path} {name}", inner)


def serve_page() -> str:
    """The flags of the server."""
    lines = [
        "# Flags of `jetlake serve`",
        "",
        "One dash or two, `-flag value` or `-flag=value`; flags win over the file.",
    ]
    group = ""
    for flag in FLAGS:
        if flag.group != group:
            group = flag.group
            lines += ["", f"## {group}", "", "| flag | meaning |", "|---|---|"]
        names = ", ".join(f"`-{name}`" if len(name) <= 3 else f"`--{name}`" for name in flag.names)
        lines.append(f"| {names} {flag.shown.replace('<', '&lt;')} | {_cell(flag.help)} |")
    return "\n".join(lines) + "\n"


def spark_options_page() -> str:
    """The options and columns of `format("jetstream")`."""
    lines = [
        '# Options of `format("jetstream")`',
        "",
        "Names are read in any case; an unknown one is an error that names the nearest. Durations are seconds or have",
        "a unit (`100ms`, `30s`, `5 minutes`), sizes are bytes or have one (`64k`, `16m`). What they are for:",
        "[spark.md](../spark.md); how to choose them: [spark-sizing.md](../spark-sizing.md).",
    ]
    for title, kind in (
        ("Connection, for reading and writing", ConnectionOptions),
        ("Reading", SourceOptions),
        ("Writing", SinkOptions),
    ):
        lines += ["", f"## {title}", "", "| option | default | meaning |", "|---|---|---|"]
        lines += [f"| `{field.name}` | {_cell(field.default)} | {_cell(field.doc)} |" for field in describe(kind)]
    lines += ["", "## Columns of a message that is read", "", "| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{kind}` | {_cell(text)} |" for name, (kind, text) in COLUMNS.items()]
    lines += ["", "## Columns of a row that is written", "", "| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{kind}` | {_cell(text)} |" for name, (kind, text) in SINK_COLUMNS.items()]
    return "\n".join(lines) + "\n"


def conformance_tests() -> dict[str, str]:
    """The source of each test that runs on both servers, by its path and name."""
    found = {}
    for path in sorted((ROOT / "tests" / "conformance").rglob("test_*.py")):
        text = path.read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[f"{path.relative_to(ROOT)}::{node.name}"] = ast.get_source_segment(text, node) or ""
    # Behind the tests, for what only the constants and parameters of a file name.
    files = sorted((ROOT / "tests" / "conformance").rglob("test_*.py"))
    return found | {str(path.relative_to(ROOT)): path.read_text() for path in files}


def server_headers() -> list[str]:
    """Every header of NATS that the server's code, or the values on the wire, name."""
    package = ROOT / "src" / "jetlake"
    texts = [path.read_text() for folder in ("server", "model") for path in (package / folder).rglob("*.py")]
    return sorted({name for text in texts for name in re.findall(r"[\"'](Nats-[A-Za-z-]*[a-z])[\"':]", text)})


def compatibility_page() -> str:
    """For each API subject and header: a test of the conformance suite that holds it against nats-server."""
    tests = conformance_tests()

    path = REFERENCE / "compatibility.md"
    # A proof that still holds stays, so that a new test elsewhere does not change the page.
    drawn = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", path.read_text() if path.exists() else "", re.MULTILINE))

    def row(name: str, pattern: str) -> str:
        names = [drawn.get(name, ""), *tests]
        proof = next((one for one in names if re.search(pattern, tests.get(one, ""))), None)
        return f"| `{name}` | " + (f"`{proof}` |" if proof is not None else "not named in a test on both servers |")

    lines = [
        "# Compatibility",
        "",
        "Every subject of the JetStream API and every header that the server knows, with a test that names it and runs",
        "on the embedded server and on nats-server alike. Behaviours, and where the two differ, are on the page about",
        "[conformance](../conformance.md).",
        "",
        "| subject | the same test on both servers |",
        "|---|---|",
    ]
    for subject in dict.fromkeys(re.findall(r"^\| `([A-Z_.]+)", api_page(), re.MULTILINE)):
        verb = subject.rstrip(".")
        # A single word is the protocol's INFO too.
        pattern = (
            rf"(?<![A-Z]){re.escape(verb)}(?![A-Z_])" if "." in verb else rf"API\.{verb}\b|api\(.?[\"']{verb}[\"']"
        )
        lines.append(row(f"$JS.API.{verb}", pattern))
    lines += ["", "| header | the same test on both servers |", "|---|---|"]
    lines += [row(header, rf"{header}(?![A-Za-z-])") for header in server_headers()]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "compatibility.md": compatibility_page,
    "errors.md": errors_page,
    "api.md": api_page,
    "configuration.md": configuration_page,
    "command.md": command_page,
    "serve.md": serve_page,
    "spark-options.md": spark_options_page,
}


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, draw in PAGES.items():
        (REFERENCE / name).write_text(draw())
        print(f"docs/reference/{name}")


if __name__ == "__main__":
    main()
