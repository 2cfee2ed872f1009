"""`jetlake account report`, `backup`, `restore` and `tls`: connections, all streams, the server's certificate."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.contexts import plain
from jetlake.cli.session import EXIT_FAILED, Session, command, confirm, fail, force_option, json_option
from jetlake.cli.shared_options import SharedCommand, SharedGroup
from jetlake.cli.values import DURATION
from jetlake.errors import ApiError, JetlakeError

_STALL_S = 0.3


async def _own(session: Session, report: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Collect what every server says about the account of this connection."""
    async with await session.connect() as client:
        asked = client.request_many(
            f"$SYS.REQ.ACCOUNT.PING.{report}", msgspec.json.encode(body), timeout=session.timeout_s, stall=_STALL_S
        )
        answers = [msgspec.json.decode(answer.data) async for answer in asked]
    for answer in answers:
        if answer.get("data") is None:
            raise JetlakeError(str(answer.get("error", {}).get("description")))
    return answers


@click.group("report", cls=SharedGroup)
def report() -> None:
    """Show the connections and statistics of the account."""


_SORTS = {
    "in-bytes": "in_bytes",
    "out-bytes": "out_bytes",
    "in-msgs": "in_msgs",
    "out-msgs": "out_msgs",
    "subs": "subscriptions",
    "cid": "cid",
}


@report.command("connections", example="jetlake account report connections --sort in-msgs")
@click.option("--sort", type=click.Choice([*_SORTS, "uptime"]), default="subs", show_default=True, help="Sort by this.")
@click.option(
    "--top", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Maximum number of connections."
)
@click.option("--subject", metavar="SUBJECT", help="Only connections with a subscription that matches.")
@json_option
@command
async def connections(session: Session, sort: str, top: int, subject: str | None, as_json: bool) -> None:
    """Show the connections of the account on all servers."""
    answers = await _own(session, "CONNZ", {"filter_subject": subject} if subject else {})
    found = [(one["server"]["name"], each) for one in answers for each in one["data"].get("connections") or ()]
    if sort == "uptime":
        found.sort(key=lambda pair: str(pair[1].get("start", "")))
    else:
        found.sort(key=lambda pair: pair[1].get(_SORTS[sort], 0), reverse=sort != "cid")
    if as_json:
        output.print_json([{"server": name, **each} for name, each in found[:top]])
        return
    output.print_table(
        f"Top {min(top, len(found))} Connections out of {len(found):,} by {sort}",
        ["CID", "Name", "Server", "IP", "Uptime", "In Msgs", "Out Msgs", "In Bytes", "Out Bytes", "Subs"],
        [
            [
                each["cid"],
                each.get("name", ""),
                name,
                f"{each.get('ip', '')}:{each.get('port', '')}",
                each.get("uptime", ""),
                output.count(each.get("in_msgs", 0)),
                output.count(each.get("out_msgs", 0)),
                output.size(each.get("in_bytes", 0)),
                output.size(each.get("out_bytes", 0)),
                output.count(each.get("subscriptions", 0)),
            ]
            for name, each in found[:top]
        ],
        numbers=[0, 5, 6, 7, 8, 9],
        spare=[2, 3, 4, 5, 6],
    )


@report.command("statistics", example="jetlake account report statistics")
@json_option
@command
async def statistics(session: Session, as_json: bool) -> None:
    """Show what the account sends and receives on each server."""
    answers = await _own(session, "STATZ", {})
    found = [(one["server"], each) for one in answers for each in one["data"].get("account_statz") or ()]
    if as_json:
        output.print_json([{"server": server["name"], **each} for server, each in found])
        return
    output.print_table(
        "Server Statistics",
        [
            *("Server", "Cluster", "Version", "Connections", "Leafnodes", "Sent Bytes", "Sent Messages"),
            *("Received Bytes", "Received Messages", "Slow Consumers"),
        ],
        [
            [
                server["name"],
                server.get("cluster", ""),
                server.get("ver", ""),
                output.count(each.get("conns", 0)),
                output.count(each.get("leafnodes", 0)),
                output.size(each["sent"]["bytes"]),
                output.count(each["sent"]["msgs"]),
                output.size(each["received"]["bytes"]),
                output.count(each["received"]["msgs"]),
                output.count(each.get("slow_consumers", 0)),
            ]
            for server, each in found
        ],
        numbers=[3, 4, 5, 6, 7, 8, 9],
        spare=[1, 4, 2],
    )


@click.command("backup", cls=SharedCommand, example="jetlake account backup backups/all --force")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--check", is_flag=True, help="Count streams that have lost messages as failures.")
@click.option("--consumers/--no-consumers", default=True, help="Whether the consumers are in the backup.")
@click.option("-w", "--critical-warnings", is_flag=True, help="Also exit with 1 where a stream in memory is left out.")
@force_option
@json_option
@command
async def backup(
    session: Session, folder: str, check: bool, consumers: bool, critical_warnings: bool, force: bool, as_json: bool
) -> None:
    """Back up all streams of the account, each to a folder of its name in FOLDER."""
    async with session.jetstream() as js:
        infos = sorted(await js.streams(), key=lambda info: info.config.name)
        if not infos:
            fail("the account has no streams")
        total = output.size(sum(info.state.bytes for info in infos))
        confirm(f"Back up {output.plural(len(infos), 'stream')} ({total}) to {folder}?", force)
        done, warned, failed = [], {}, {}
        for info in infos:
            name = info.config.name
            if info.config.storage == "memory":
                warned[name] = "streams in memory have no backup"
                continue
            lost = info.state.lost
            if check and lost is not None and lost.msgs:
                failed[name] = f"has lost {output.plural(len(lost.msgs), 'message')}"
                continue
            try:
                handle = await js.stream(name)
                with output.Bar(f"Backing up {name}", info.state.bytes) as bar:
                    await handle.backup(Path(folder) / name, consumers=consumers, progress=bar.show)
                done.append(name)
            except (ApiError, OSError) as error:
                failed[name] = str(error)
    if as_json:
        output.print_json({"folder": folder, "streams": done, "warnings": warned, "failures": failed})
    else:
        click.echo(f"Backed up {output.plural(len(done), 'stream')} to {folder}")
        for name, reason in (*warned.items(), *failed.items()):
            click.echo(f"  {name}: {reason}")
    if failed or (warned and critical_warnings):
        raise SystemExit(EXIT_FAILED)


@click.command("restore", cls=SharedCommand, example="jetlake account restore backups/all")
@click.argument("folder", type=click.Path(file_okay=False))
@click.option("--cluster", metavar="CLUSTER", help="Place the streams in this cluster.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Place them on servers with this tag.")
@json_option
@command
async def restore(session: Session, folder: str, cluster: str | None, tags: tuple[str, ...], as_json: bool) -> None:
    """Restore all streams of a backup in FOLDER; none may exist already."""
    folders = _backups(folder)
    options: dict[str, Any] = {"placement": {"cluster": cluster or "", "tags": list(tags)}} if cluster or tags else {}
    async with session.jetstream() as js:
        known = set(await js.stream_names()) & {path.name for path in folders}
        if known:
            fail(f"streams exist already: {', '.join(sorted(known))}; nothing was restored")
        for path in folders:
            with output.Bar(f"Restoring {path.name}", 0) as bar:
                restored = await js.restore(path, None, progress=bar.show, **options)
            output.warn_of_missing(path, restored.cached_info)
    names = [path.name for path in folders]
    output.tell(f"Restored {output.plural(len(names), 'stream')}: {', '.join(names)}", {"streams": names}, as_json)


def _backups(folder: str) -> list[Path]:
    """Return the folders of streams in a backup of an account."""
    found = sorted(path.parent for path in Path(folder).glob("*/backup.json"))
    if not found:
        fail(f"{folder} has no backups of streams. Create one: jetlake account backup FOLDER")
    return found


@click.command("tls", cls=SharedCommand, example="jetlake account tls --expire-warn 14d")
@click.option(
    "--expire-warn",
    type=DURATION,
    metavar="DURATION",
    help="Exit with 1 when the certificate expires within this time.",
)
@click.option("--pem/--no-pem", default=True, help="Also print the certificate.")
@json_option
@command
async def tls(session: Session, expire_warn: int | None, pem: bool, as_json: bool) -> None:
    """Show the TLS certificate of the server, and whether this machine trusts it."""
    shown = await _certificate(session)
    left_s = shown["expires_s"] - time.time() if shown["expires_s"] else None
    if as_json:
        output.print_json(shown)
    else:
        trusted = shown["error"] or "trusted"
        output.print_facts(
            f"TLS of {session.target.shown}",
            {
                "Connection": [("Version", shown["version"]), ("Cipher", shown["cipher"]), ("Certificate", trusted)],
                "Certificate": [
                    ("Subject", shown["subject"]),
                    ("Issuer", shown["issuer"]),
                    ("Names", ", ".join(shown["names"])),
                    ("Valid Until", None if left_s is None else _until(shown["not_after"], left_s)),
                ],
            },
        )
        if pem:
            click.echo(f"\n{shown['pem'].strip()}")
    if shown["error"]:
        raise SystemExit(EXIT_FAILED)
    if expire_warn is not None and left_s is not None and left_s < expire_warn / 1e9:
        fail(f"the certificate expires in {output.age(max(left_s, 0))}")


def _until(not_after: str, left_s: float) -> str:
    return f"{not_after} (in {output.age(left_s)})" if left_s > 0 else f"{not_after} (expired)"


async def _certificate(session: Session) -> dict[str, Any]:
    """Take the server's certificate from a handshake; one that fails is repeated without verification."""
    from jetlake.client.settings.tls_files import tls_from_files

    target = plain(session.target)
    context = tls_from_files(target.tls_ca, target.tls_cert, target.tls_key)
    try:
        return await _handshake(session, context)
    except ssl.SSLCertVerificationError as error:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return {**await _handshake(session, context), "error": error.verify_message}


async def _handshake(session: Session, context: ssl.SSLContext) -> dict[str, Any]:
    target = plain(session.target)
    url = target.server.split(",")[0]
    address = urlsplit(url if "://" in url else f"nats://{url}")
    host, port = address.hostname or "127.0.0.1", address.port or 4222
    async with asyncio.timeout(session.timeout_s):
        first: dict[str, Any] = {"ssl": context, "server_hostname": host} if target.tls_first else {}
        reader, writer = await asyncio.open_connection(host, port, **first)
        try:
            if not target.tls_first:
                info = msgspec.json.decode((await reader.readline()).removeprefix(b"INFO "))
                if not (info.get("tls_required") or info.get("tls_available")):
                    fail(f"server {target.shown} does not use TLS")
                await writer.start_tls(context, server_hostname=host)
            channel = writer.get_extra_info("ssl_object")
            der = channel.getpeercert(binary_form=True) or b""
            fields, version, cipher = channel.getpeercert() or {}, channel.version(), channel.cipher()[0]
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    not_after = fields.get("notAfter", "")
    return {
        "version": version,
        "cipher": cipher,
        "error": "",
        "subject": _named(fields.get("subject", ())),
        "issuer": _named(fields.get("issuer", ())),
        "names": [name for _, name in fields.get("subjectAltName", ())],
        "not_after": not_after,
        "expires_s": ssl.cert_time_to_seconds(not_after) if not_after else 0,
        "pem": ssl.DER_cert_to_PEM_cert(der),
    }


def _named(parts: Any) -> str:
    """Write a distinguished name: `commonName=localhost, organizationName=…`."""
    return ", ".join(f"{key}={value}" for part in parts for key, value in part)


ACCOUNT_COMMANDS: tuple[click.Command, ...] = (report, backup, restore, tls)
