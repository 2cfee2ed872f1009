"""`jetlake micro …`: services that run, what they offer and how they are doing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
import msgspec

from jetlake.cli import output
from jetlake.cli.message_content import headers_of, headers_option, print_content, print_line
from jetlake.cli.name_completion import service_names
from jetlake.cli.session import Session, command, fail, json_option, raise_refused
from jetlake.cli.shared_options import SharedGroup
from jetlake.client.services.discovery import Services
from jetlake.client.services.request import ServiceRequest
from jetlake.model.service import ServiceIdentity, ServiceInfo, ServiceStats

FoundType = TypeVar("FoundType", bound=ServiceIdentity)

_name = click.argument("name", default="", required=False, shell_complete=service_names)
_instance = click.argument("instance", default="", required=False)
_NONE = "No services found"


@click.group(cls=SharedGroup)
def micro() -> None:
    """Find services and show their statistics."""


async def _ask(session: Session, name: str, ask: Callable[[Services], Awaitable[list[FoundType]]]) -> list[FoundType]:
    """Ask the running services; exits when one is named and none of that name answers."""
    async with await session.connect() as client:
        found = await ask(client.services())
        if not found:
            raise_refused(client)
    if not found and name:
        fail(f"service {name} not found. List services: jetlake micro ls")
    return found


@micro.command("ls", example="jetlake micro ls")
@_name
@json_option
@command
async def list_services(session: Session, name: str, as_json: bool) -> None:
    """List the running instances of all services, or of NAME."""
    found = await _ask(session, name, lambda services: services.info(name, timeout=session.timeout_s))
    if as_json:
        output.print_json(found)
    elif not found:
        click.echo(_NONE)
    else:
        output.print_table(
            output.plural(len(found), "service instance"),
            ["Name", "Version", "Instance", "Endpoints", "Description"],
            [
                [one.name, one.version, one.id, len(one.endpoints or ()), one.description]
                for one in sorted(found, key=lambda one: (one.name, one.id))
            ],
            numbers=[3],
            spare=[4, 3],
        )


@micro.command("ping", example="jetlake micro ping shop")
@_name
@_instance
@json_option
@command
async def ping(session: Session, name: str, instance: str, as_json: bool) -> None:
    """Ping the instances of all services, of service NAME, or one INSTANCE of it."""
    found = await _ask(session, name, lambda services: services.ping(name, instance, timeout=session.timeout_s))
    if as_json:
        output.print_json(found)
    elif not found:
        click.echo(_NONE)
    for one in () if as_json else found:
        click.echo(output.printable(f"{one.name} {one.version} {one.id}"))


@micro.command("info", example="jetlake micro info shop")
@click.argument("name", shell_complete=service_names)
@_instance
@json_option
@command
async def info(session: Session, name: str, instance: str, as_json: bool) -> None:
    """Show what the instances of service NAME offer."""
    found = await _ask(session, name, lambda services: services.info(name, instance, timeout=session.timeout_s))
    if as_json:
        output.print_json(found)
        return
    for one in found:
        _print_info(one)


def _print_info(info: ServiceInfo) -> None:
    output.print_facts(
        f"Service {info.name}, instance {info.id}",
        {
            "Service": [
                ("Version", info.version),
                ("Description", info.description),
                *((f"Metadata {key}", value) for key, value in (info.metadata or {}).items()),
            ],
            "Endpoints": [
                (one.name, f"{one.subject}" + (f", queue {one.queue_group}" if one.queue_group else ""))
                for one in info.endpoints or ()
            ],
        },
    )


@micro.command("stats", example="jetlake micro stats shop")
@_name
@_instance
@json_option
@command
async def stats(session: Session, name: str, instance: str, as_json: bool) -> None:
    """Show the statistics of all services, or of service NAME."""
    found = await _ask(session, name, lambda services: services.stats(name, instance, timeout=session.timeout_s))
    if as_json:
        output.print_json(found)
        return
    if not found:
        click.echo(_NONE)
        return
    output.print_table(
        f"{output.plural(len(found), 'instance')} of {name or 'services'}",
        ["Service", "Instance", "Endpoint", "Requests", "Errors", "Average", "Started", "Last error"],
        [row for one in sorted(found, key=lambda one: (one.name, one.id)) for row in _stats_rows(one)],
        numbers=[3, 4, 5],
        spare=[6, 7, 1],
    )


def _stats_rows(service: ServiceStats) -> list[list[str]]:
    return [
        [
            service.name,
            service.id,
            one.name,
            output.count(one.num_requests),
            output.count(one.num_errors),
            output.duration(one.average_processing_time),
            output.when(service.started),
            one.last_error or "",
        ]
        for one in service.endpoints or ()
    ]


@micro.command("req", example="jetlake micro req shop.echo hello")
@click.argument("subject")
@click.argument("body", default="")
@headers_option
@click.option("-r", "--raw", is_flag=True, help="Print only the payload.")
@json_option
@command
async def request(
    session: Session, subject: str, body: str, headers: tuple[tuple[str, str], ...], raw: bool, as_json: bool
) -> None:
    """Send BODY to the endpoint on SUBJECT; an error of the service is an error of this command."""
    async with await session.connect() as client:
        sent = headers_of(headers) or None
        answer = await client.services().request(subject, body.encode(), headers=sent, timeout=session.timeout_s)
    if as_json:
        print_line(answer)
    else:
        print_content(answer, raw)


@micro.command("serve", example="jetlake micro serve demo -H Kind:test")
@click.argument("name")
@headers_option
@click.option("--count", type=click.IntRange(0), default=0, metavar="N", help="Stop after N requests.")
@json_option
@command
async def serve(session: Session, name: str, headers: tuple[tuple[str, str], ...], count: int, as_json: bool) -> None:
    """Run a demonstration service NAME until Ctrl-C, whose endpoint NAME.echo answers with what it gets."""
    done = asyncio.Event()
    number = 0

    async with await session.connect(stay=True) as client:
        about = f"jetlake demonstration service ({name})"
        async with client.service(name, "1.0.0", description=about) as service:

            def echo(request: ServiceRequest) -> None:
                nonlocal number
                number += 1
                told = f"Handling request on subject {request.subject}"
                click.echo(
                    msgspec.json.encode({"subject": request.subject, "size": len(request.data)}) if as_json else told
                )
                request.respond(request.data, headers=headers_of(headers))
                if number == count:
                    done.set()

            service.group(name).add_endpoint("echo", echo)
            await client.flush()
            raise_refused(client)
            click.echo(f"Listening on {name}.echo; press Ctrl-C to stop", err=True)
            await done.wait()
