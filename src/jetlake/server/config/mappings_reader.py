"""The `mappings` of an account, or of the server, in a configuration file."""

from __future__ import annotations

from jetlake.errors import ConfigError
from jetlake.model.weighted_mappings import MappingDestination, MappingOptions, WeightedMappings
from jetlake.server.config.conf import Value
from jetlake.server.config.section import Findings, Section

__all__ = ["read_mappings"]


def read_mappings(section: Section | None) -> tuple[MappingOptions, ...]:
    """Read a map of subjects to one destination, or to destinations with weights."""
    if section is None:
        return ()
    mappings: list[MappingOptions] = []
    for source, value in section.items():
        if value.is_variable:
            continue
        mapping = MappingOptions(source=source, destinations=_destinations(value, section.findings))
        try:
            WeightedMappings([mapping])
        except ConfigError as error:
            raise ConfigError(f"{value.place}: {error}") from None
        mappings.append(mapping)
    return tuple(mappings)


def _destinations(value: Value, findings: Findings) -> tuple[MappingDestination, ...]:
    if isinstance(value.data, str):
        return (MappingDestination(subject=value.data),)
    entries = value.data if isinstance(value.data, list) else [value]
    found = [_destination(entry, findings) for entry in entries]
    return tuple(destination for destination in found if destination is not None)


def _destination(value: Value, findings: Findings) -> MappingDestination | None:
    """Read one destination; None when it is for the servers of a cluster, which this one is never in."""
    if not isinstance(value.data, dict):
        raise ConfigError(f"{value.place}: Expected an entry for the mapping destination")
    section = Section(value, findings)
    subject = section.string("dest", "destination")
    weight = _weight(section.find("weight"), subject, value.place)
    cluster = section.string("cluster")
    section.finish()
    if not subject:
        raise ConfigError(f"{value.place}: a mapping needs a destination")
    return None if cluster else MappingDestination(subject=subject, weight=weight)


def _weight(value: Value | None, subject: str, place: str) -> int:
    if value is None:
        raise ConfigError(f'{place}: Missing weight for mapping destination "{subject}"')
    text = str(value.data).removesuffix("%")
    if isinstance(value.data, bool) or not text.isascii() or not text.isdigit() or int(text) > 100:
        raise ConfigError(f'{value.place}: Invalid weight "{value.data}" for mapping destination')
    return int(text)
