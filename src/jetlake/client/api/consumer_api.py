"""Requests about consumers: creating one from the options that describe it, pausing and resuming one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import configured
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.durations import Seconds
from jetlake.model.encoding.times import time_text
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.model.replies import ConsumerCreateReply, ConsumerPauseReply
from jetlake.model.requests import ConsumerCreateRequest, ConsumerPauseRequest
from jetlake.protocol.nuid import next_nuid

__all__ = ["consumer_config", "create_consumer", "pause_consumer"]


def consumer_config(name: str | None, durable: bool | None, options: dict[str, Any]) -> ConsumerConfig:
    """The configuration of a consumer that the options describe; acknowledgements are explicit by default."""
    if name is not None:
        check_name("consumer", name)
    elif durable:
        raise InvalidOptionError("a durable consumer needs a name")
    is_durable = name is not None if durable is None else durable
    wanted = {"ack_policy": AckPolicy.EXPLICIT, **options, "name": name or next_nuid()}
    if is_durable:
        wanted["durable_name"] = name
    return configured(ConsumerConfig, wanted)


async def create_consumer(
    api: ApiCaller, stream: str, config: ConsumerConfig, action: ConsumerAction, timeout_s: float | None = None
) -> ConsumerInfo:
    """Ask the server for a consumer with this configuration."""
    name = config.name or config.durable_name or next_nuid()
    check_name("consumer", name)
    names = [stream, name]
    if config.filter_subject and not config.filter_subjects:
        names.append(config.filter_subject)
    request = ConsumerCreateRequest(
        stream_name=stream, config=msgspec.structs.replace(config, name=name), action=action
    )
    return await api.call(ConsumerCreateReply, "CONSUMER.CREATE", *names, body=request, timeout_s=timeout_s)


async def pause_consumer(
    api: ApiCaller, stream: str, name: str, until: datetime | str | Seconds | None
) -> ConsumerPauseReply:
    """Pause a consumer until a time or for some seconds; None resumes it.

    Raises:
        ConsumerNotFoundError: no consumer has that name.
    """
    if isinstance(until, (int, float)):
        until = timedelta(seconds=until)
    if isinstance(until, timedelta):
        until = datetime.now(UTC) + until
    body = ConsumerPauseRequest() if until is None else ConsumerPauseRequest(pause_until=time_text(until))
    check_name("stream", stream)
    return await api.call(ConsumerPauseReply, "CONSUMER.PAUSE", stream, check_name("consumer", name), body=body)
