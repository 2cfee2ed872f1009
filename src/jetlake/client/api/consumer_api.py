"""Requests about consumers: creating one from the options that describe it, pausing and resuming one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from jetlake.client.api.api_caller import ApiCaller, check_name
from jetlake.client.api.config_options import configured
from jetlake.errors import InvalidOptionError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.consumer_features import CONSUMER_FEATURES, FEATURE_PREFIX, STRICT_ACKS, features_of
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.model.encoding.times import format_time, start_text, time_text
from jetlake.model.enums import AckPolicy, ConsumerAction
from jetlake.model.replies import ConsumerCreateReply, ConsumerPauseReply
from jetlake.model.requests import ConsumerCreateRequest, ConsumerPauseRequest
from jetlake.protocol.nuid import next_nuid
from jetlake.protocol.subjects import is_valid_subscribe

__all__ = ["consumer_config", "create_consumer", "pause_consumer", "with_features"]


def consumer_config(name: str | None, durable: bool | None, options: dict[str, Any]) -> ConsumerConfig:
    """Return the configuration of a consumer that the options describe; acknowledgements are explicit by default."""
    if given := options.get("durable_name") or options.get("name"):
        raise InvalidOptionError(
            f"the name is the first argument, and makes a consumer durable: create_consumer({given!r}, …)"
        )
    if name is not None:
        check_name("consumer", name)
    elif durable:
        raise InvalidOptionError("a durable consumer needs a name")
    is_durable = name is not None if durable is None else durable
    wanted = {"ack_policy": AckPolicy.EXPLICIT, **with_features(options, {}), "name": name or next_nuid()}
    if is_durable:
        wanted["durable_name"] = name
    return configured(ConsumerConfig, wanted)


async def create_consumer(
    api: ApiCaller, stream: str, config: ConsumerConfig, action: ConsumerAction, timeout_s: float | None = None
) -> ConsumerInfo:
    """Ask the server for a consumer with this configuration.

    Raises:
        InvalidOptionError: the filter is not a subject, or the configuration needs a feature that the server lacks.
    """
    name = config.name or config.durable_name or next_nuid()
    check_name("consumer", name)
    _check_features(api, config)
    names = [stream, name]
    if config.filter_subject and not config.filter_subjects:
        # It becomes part of the request's subject; one that is none is never answered.
        if not is_valid_subscribe(config.filter_subject.encode()):
            raise InvalidOptionError(f"filter_subject {config.filter_subject!r} is not a subject")
        names.append(config.filter_subject)
    config = msgspec.structs.replace(config, name=name)
    if config.opt_start_time is not None:
        config = msgspec.structs.replace(config, opt_start_time=start_text(config.opt_start_time))
    request = ConsumerCreateRequest(stream_name=stream, config=config, action=action)
    return await api.call(ConsumerCreateReply, "CONSUMER.CREATE", *names, body=request, timeout_s=timeout_s)


def with_features(options: dict[str, Any], metadata: Mapping[str, str]) -> dict[str, Any]:
    """Write the options of features into the metadata, where servers without them keep them and do nothing.

    Args:
        options: what a consumer was asked to be.
        metadata: what it has already, unless the options say otherwise.
    """
    given = {name: options[name] for name in CONSUMER_FEATURES if name in options}
    if not given:
        return options
    merged = dict(options.get("metadata", metadata))
    for name, is_on in given.items():
        if not isinstance(is_on, bool):
            raise InvalidOptionError(f"{name} must be True or False, not {is_on!r}")
        merged.pop(FEATURE_PREFIX + name, None)
        if is_on:
            merged[FEATURE_PREFIX + name] = "true"
    return {**{key: value for key, value in options.items() if key not in given}, "metadata": merged}


def _check_features(api: ApiCaller, config: ConsumerConfig) -> None:
    missing = features_of(config) - set(api.connection.info.jetlake_features)
    if missing:
        server = api.connection.info.version
        raise InvalidOptionError(
            f"{' and '.join(sorted(missing))}: the server ({server}) does not support this; jetlake's own server does"
        )
    if STRICT_ACKS in features_of(config) and config.ack_policy is not AckPolicy.EXPLICIT:
        raise InvalidOptionError(f"strict_acks needs ack_policy explicit, not {config.ack_policy.value}")


async def pause_consumer(
    api: ApiCaller, stream: str, name: str, until: datetime | str | Seconds | None
) -> ConsumerPauseReply:
    """Pause a consumer until a time or for some seconds; None resumes it.

    Raises:
        ConsumerNotFoundError: no consumer has that name.
    """
    text: str | None
    if isinstance(until, (int, float, timedelta)):
        text = format_time(time.time_ns() + nanoseconds(until))
    else:
        text = time_text(until) if until is not None else None
    body = ConsumerPauseRequest() if text is None else ConsumerPauseRequest(pause_until=text)
    check_name("stream", stream)
    return await api.call(ConsumerPauseReply, "CONSUMER.PAUSE", stream, check_name("consumer", name), body=body)
