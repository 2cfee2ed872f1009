"""`jetlake audit`: what all servers report, collected in an archive and checked for problems."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.session import (
    EXIT_FAILED,
    EXIT_USAGE,
    Session,
    command,
    confirm,
    fail,
    force_option,
    guarded,
    json_option,
    pass_session,
)
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.system import ask_servers


class Check(NamedTuple):
    """What `analyze` looks for in the reports of one kind."""

    report: str
    name: str
    holds: str
    """What should hold."""


_CHECKS = {
    "SERVER_001": Check("healthz", "Server Health", "/healthz of every server says ok"),
    "SERVER_002": Check("varz", "Versions", "All servers have the same version"),
    "SERVER_003": Check("varz", "Slow Consumers", "No client was disconnected for reading too slowly"),
    "SERVER_004": Check("varz", "JetStream Usage", "Storage and memory are below 90 % of their limits"),
    "JETSTREAM_001": Check("jsz", "Replicas", "Replicas of streams are online and current"),
    "JETSTREAM_002": Check("jsz", "Lost Messages", "No stream has lost messages"),
}
"""The checks by their codes."""


class Fault(NamedTuple):
    """Something that does not hold."""

    code: str
    server: str
    text: str


class Analysis(msgspec.Struct, frozen=True):
    """What the checks found."""

    reports: int
    """How many reports were checked."""
    faults: list[Fault]


@click.group(cls=SharedGroup)
def audit() -> None:
    """Collect the reports of all servers in an archive, and check them for problems."""


@audit.command("gather", example="jetlake audit gather --output audit.zip --user sys --password secret")
@click.option(
    "-o", "--output", "file", default="audit.zip", show_default=True, metavar="FILE", help="The archive to write."
)
@click.option("--progress/--no-progress", default=True, help="Whether a progress bar is shown on a terminal.")
@click.option("--server-endpoints/--no-server-endpoints", default=True, help="Reports about servers.")
@click.option(
    "--server-profiles/--no-server-profiles", default=False, help="Profiles of nats-servers; jetlake has none."
)
@click.option("--account-endpoints/--no-account-endpoints", default=True, help="Reports about accounts.")
@click.option("--streams/--no-streams", default=True, help="The streams of all accounts.")
@click.option("--consumers/--no-consumers", default=True, help="The consumers of these streams.")
@force_option
@json_option
@command
async def gather(session: Session, file: str, progress: bool, force: bool, as_json: bool, **wanted: bool) -> None:
    """Write what all servers report to a ZIP archive; for users of the system account."""
    requests = list(_requests(**wanted))
    if not requests:
        fail("nothing to gather: every kind of report is left out", EXIT_USAGE)
    if await asyncio.to_thread(Path(file).exists):
        confirm(f"Overwrite {file}?", force)
    packed = io.BytesIO()
    names: list[str] = []
    with (
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive,
        output.Bar("Gathering", len(requests), is_shown=progress and not as_json) as bar,
    ):
        for report, body in requests:
            for answer in await ask_servers(session, report, body):
                kind = f"{report}_{body['name']}" if report == "PROFILEZ" else report
                names.append(f"{answer['server']['name']}/{kind.lower()}.json")
                archive.writestr(names[-1], msgspec.json.format(msgspec.json.encode(answer), indent=2))
            bar.advance(1)
    await asyncio.to_thread(_write, file, packed.getvalue())
    output.tell(f"Wrote {output.plural(len(names), 'report')} to {file}", {"file": file, "reports": names}, as_json)


def _requests(
    *, server_endpoints: bool, server_profiles: bool, account_endpoints: bool, streams: bool, consumers: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what servers are asked for: the report and its request."""
    if server_endpoints:
        yield from ((report, {}) for report in ("VARZ", "CONNZ", "ROUTEZ", "GATEWAYZ", "LEAFZ", "SUBSZ"))
        yield "HEALTHZ", {"details": True}
    if account_endpoints:
        yield "ACCOUNTZ", {}
    if streams or consumers:
        yield "JSZ", {"accounts": True, "streams": True, "consumer": consumers, "config": True}
    if server_profiles:
        yield from (("PROFILEZ", {"name": name}) for name in ("allocs", "goroutine", "heap", "mutex", "threadcreate"))


@audit.command("analyze", example="jetlake audit analyze audit.zip")
@click.argument("archive", type=click.Path(dir_okay=False), required=False)
@click.option(
    "--max-examples",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Maximum faults shown for each check; 0 for all.",
)
@click.option("--skip", "skipped", multiple=True, metavar="CODE", help="Leave out this check; may be repeated.")
@click.option("--load", metavar="FILE", help="Show an analysis written by --save instead of checking an archive.")
@click.option("--save", metavar="FILE", help="Also write the analysis to this file, as JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@force_option
@json_option
@pass_session
def analyze(
    session: Session,
    archive: str | None,
    max_examples: int,
    skipped: tuple[str, ...],
    load: str | None,
    save: str | None,
    markdown: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Check an ARCHIVE of gather for problems; exits with 1 when a check fails."""
    unknown = [code for code in skipped if code not in _CHECKS]
    if unknown:
        fail(f"no check has the code {unknown[0]}. List them: jetlake audit checks", EXIT_USAGE)
    if (archive is None) is (load is None):
        fail("name an archive of `jetlake audit gather`, or an analysis with --load", EXIT_USAGE)
    found = _loaded(load) if load is not None else _analyzed(str(archive))
    found = Analysis(found.reports, [fault for fault in found.faults if fault.code not in skipped])
    if save is not None:
        if Path(save).exists():
            confirm(f"Overwrite {save}?", force)
        guarded(lambda: _write(save, msgspec.json.format(msgspec.json.encode(found), indent=2)), session)
    if as_json:
        output.print_json({"reports": found.reports, "faults": [fault._asdict() for fault in found.faults]})
    else:
        _print_analysis(found, max_examples, markdown)
    if found.faults:
        raise SystemExit(EXIT_FAILED)


def _write(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)


def _analyzed(archive: str) -> Analysis:
    """Check an archive."""
    try:
        with zipfile.ZipFile(archive) as opened:
            answers = {name: msgspec.json.decode(opened.read(name)) for name in opened.namelist()}
    except OSError as error:
        fail(f"{archive}: {error.strerror}")
    except (zipfile.BadZipFile, msgspec.DecodeError) as error:
        fail(f"{archive} is not an archive of `jetlake audit gather`: {error}")
    for name, answer in answers.items():
        if not isinstance(answer, dict) or not isinstance(answer.get("server"), dict):
            fail(f"{archive} is not an archive of `jetlake audit gather`: {name} names no server")
    faults = [
        Fault(code, name.partition("/")[0], text)
        for name, answer in answers.items()
        for code, text in _faults(name.rpartition("/")[2].removesuffix(".json"), answer)
    ]
    versions = {one["server"].get("ver", "") for one in answers.values()}
    if len(versions) > 1:
        faults.append(Fault("SERVER_002", "all servers", f"versions differ: {', '.join(sorted(versions))}"))
    return Analysis(len(answers), faults)


def _loaded(file: str) -> Analysis:
    """Read an analysis that was saved."""
    try:
        found = msgspec.json.decode(Path(file).read_bytes(), type=Analysis)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except msgspec.DecodeError as error:
        fail(f"{file} is not an analysis of `jetlake audit analyze --save`: {error}")
    unknown = next((fault.code for fault in found.faults if fault.code not in _CHECKS), None)
    if unknown is not None:
        fail(f"{file} is of another version: no check has the code {unknown}")
    return found


def _print_analysis(found: Analysis, examples_max: int, markdown: bool) -> None:
    """Print the faults by their checks, a bounded number of each."""
    by_check: dict[str, list[Fault]] = {}
    for fault in found.faults:
        by_check.setdefault(fault.code, []).append(fault)
    summary = f"{output.plural(found.reports, 'report')} checked, {output.plural(len(found.faults), 'fault')} found"
    if markdown:
        click.echo(f"# Audit\n\n{summary}")
    for code, faults in by_check.items():
        if markdown:
            click.echo(f"\n## {code}: {_CHECKS[code].name}\n")
        start = "- " if markdown else f"FAIL {code} "
        shown = faults[: examples_max or None]
        for fault in shown:
            click.echo(output.printable(f"{start}{fault.server}: {fault.text}"))
        if len(shown) < len(faults):
            click.echo(f"{start}{len(faults) - len(shown):,} more; show all with --max-examples 0")
    if not markdown:
        click.echo(summary)


@audit.command("checks", example="jetlake audit checks")
@json_option
def checks(as_json: bool) -> None:
    """List what `jetlake audit analyze` looks for."""
    if as_json:
        output.print_json([{"code": code, **check._asdict()} for code, check in _CHECKS.items()])
        return
    rows = [[code, *check] for code, check in _CHECKS.items()]
    output.print_table("Audit Checks", ["Code", "Report", "Check", "What should hold"], rows)


def _faults(report: str, answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong in one report: the code of the check, and a text."""
    data = answer.get("data") or {}
    if report == "healthz" and data.get("status") != "ok":
        yield "SERVER_001", f"not healthy: {data.get('error') or data.get('status')}"
    if report == "varz":
        if data.get("slow_consumers"):
            yield "SERVER_003", output.plural(data["slow_consumers"], "slow consumer")
        usage, config = data.get("jetstream", {}).get("stats") or {}, data.get("jetstream", {}).get("config") or {}
        for field, limit in (("storage", "max_storage"), ("memory", "max_memory")):
            if config.get(limit, 0) > 0 and usage.get(field, 0) > 0.9 * config[limit]:
                yield "SERVER_004", f"JetStream {field} is {usage[field] * 100 // config[limit]} % full"
    if report == "jsz":
        for account in data.get("account_details") or ():
            for stream in account.get("stream_detail") or ():
                yield from _faults_of_stream(stream)


def _faults_of_stream(stream: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for peer in (stream.get("cluster") or {}).get("replicas") or ():
        if peer.get("offline") or not peer.get("current", True):
            behind = f"is {peer.get('lag', 0):,} operations behind"
            yield "JETSTREAM_001", f"stream {stream['name']} replica {peer['name']} {behind}"
    if (stream.get("state") or {}).get("lost"):
        yield "JETSTREAM_002", f"stream {stream['name']} has lost messages"
