"""The `exports`, `imports` and `msg_trace` of an account in a configuration file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlake.errors import ConfigError
from jetlake.protocol.subjects import is_valid_config, is_valid_publish
from jetlake.server.config.conf import Value
from jetlake.server.config.section import Findings, Section
from jetlake.server.config.sharing import ExportOptions, ImportOptions, LatencyOptions, TraceOptions

__all__ = ["read_exports", "read_imports", "read_trace"]

_RESPONSES = {
    "singleton": "singleton",
    "single": "singleton",
    "stream": "stream",
    "chunked": "chunked",
    "chunk": "chunked",
}
_RESPONSE_KEYS = ("response", "response_type")
_THRESHOLD_KEYS = ("threshold", "response_threshold", "response_max_time", "response_time")


def read_exports(value: Value | None, findings: Findings) -> tuple[ExportOptions, ...]:
    """Read a list of exports."""
    return tuple(_export(entry, findings) for entry in _entries(value, "Exports"))


def read_imports(value: Value | None, findings: Findings) -> tuple[ImportOptions, ...]:
    """Read a list of imports."""
    return tuple(_import(entry, findings) for entry in _entries(value, "Imports"))


def _entries(value: Value | None, what: str) -> list[Value]:
    if value is None:
        return []
    if not isinstance(value.data, list):
        raise ConfigError(f"{value.place}: {what} should be an array")
    return value.data


def _kind(section: Section) -> str:
    if section.has("stream") and section.has("service"):
        raise ConfigError(f"{section.value.place}: an entry is a stream or a service, not both")
    if not section.has("stream", "service"):
        raise ConfigError(f"{section.value.place}: a stream or a service is missing")
    return "stream" if section.has("stream") else "service"


def _subject(section: Section, *names: str) -> str:
    subject = section.string(*names)
    if not is_valid_config(subject.encode()):
        raise ConfigError(f'{section.value.place}: subject "{subject}" is not a valid subject')
    return subject


def _export(value: Value, findings: Findings) -> ExportOptions:
    section = Section(value, findings)
    kind = _kind(section)
    settings: dict[str, Any] = {
        "kind": kind,
        "subject": _subject(section, kind),
        "accounts": section.strings("accounts"),
    }
    if kind == "stream" and section.has(*_RESPONSE_KEYS, *_THRESHOLD_KEYS, "latency"):
        raise ConfigError(f"{value.place}: Detected response directive on non-service")
    if section.has(*_RESPONSE_KEYS):
        word = section.string(*_RESPONSE_KEYS)
        if word.lower() not in _RESPONSES:
            raise ConfigError(f'{value.place}: Unknown response type: "{word}"')
        settings["response"] = _RESPONSES[word.lower()]
    if section.has(*_THRESHOLD_KEYS):
        settings["threshold_s"] = section.duration(*_THRESHOLD_KEYS, default=0.0)
    settings["account_token_position"] = section.integer("account_token_position", default=0)
    latency = section.find("latency")
    if latency is not None:
        settings["latency"] = _latency(latency, findings, settings)
    if kind == "stream" and section.has("allow_trace"):
        raise ConfigError(f"{value.place}: Detected allow_trace directive on non-service")
    settings["allow_trace"] = section.boolean("allow_trace")
    section.finish()
    return ExportOptions(**settings)


def _latency(value: Value, findings: Findings, export: dict[str, Any]) -> LatencyOptions:
    """Read how a service is measured: the subject alone, or a map with subject and sampling."""
    subject, percent = _sampled_subject(
        value, findings, "latency", "subject", "Latency subject required, but missing", _sampling
    )
    options = LatencyOptions(subject=subject, percent=percent)
    what = f'Error adding service latency sampling for "{export["subject"]}" on subject "{options.subject}"'
    if not is_valid_publish(options.subject.encode()):
        raise ConfigError(f"{value.place}: {what}: invalid publish subject")
    if export.get("response", "singleton") != "singleton":
        raise ConfigError(f"{value.place}: {what}: bad service response type")
    return options


def _sampled_subject(
    value: Value, findings: Findings, name: str, key: str, missing: str, sampling: Callable[[Section], int]
) -> tuple[str, int]:
    """Read a subject alone, of which all is taken, or a map with the subject and how much is taken."""
    if isinstance(value.data, str):
        return value.data, 100
    if not isinstance(value.data, dict):
        raise Section.wrong(value, name, "a subject or a map")
    section = Section(value, findings)
    if not section.has(key):
        raise ConfigError(f"{value.place}: {missing}")
    found = section.string(key), sampling(section)
    section.finish()
    return found


def _percent(section: Section) -> int:
    return section.percent("sampling", default=100)


def _sampling(section: Section) -> int:
    """Read a percentage; `headers` is 0."""
    value = section.find("sampling")
    if value is not None and isinstance(value.data, str) and value.data.lower() == "headers":
        return 0
    return _percent(section)


def _import(value: Value, findings: Findings) -> ImportOptions:
    section = Section(value, findings)
    kind = _kind(section)
    inner = section.section(kind)
    assert inner is not None
    account = inner.string("account")
    if not account or not inner.has("subject"):
        raise ConfigError(f"{inner.value.place}: Expect an account name and a subject")
    subject = _subject(inner, "subject")
    inner.finish()
    to = section.string("to")
    if kind == "stream" and section.has("prefix") and not to:
        to = f"{section.string('prefix')}.{subject}"
    else:
        section.ignore("a service, or a stream with `to`, has none", "prefix")
    share = section.boolean("share")
    if kind == "service" and section.has("allow_trace"):
        raise ConfigError(f"{value.place}: Detected allow_trace directive on a non-stream")
    allow_trace = section.boolean("allow_trace")
    section.finish()
    return ImportOptions(
        kind=kind,
        account=account,
        subject=subject,
        to=to,
        share=share and kind == "service",
        allow_trace=allow_trace,
    )


def read_trace(value: Value | None, findings: Findings) -> TraceOptions | None:
    """Read which messages of an account are traced: the destination alone, or a map with sampling."""
    if value is None:
        return None
    destination, percent = _sampled_subject(
        value, findings, "msg_trace", "dest", "Trace destination is missing", _percent
    )
    options = TraceOptions(destination=destination, percent=percent)
    if not is_valid_publish(options.destination.encode()):
        raise ConfigError(f'{value.place}: Trace destination "{options.destination}" is not valid')
    return options
