"""The text of a credentials file: a user's JWT and the seed that belongs to it, each between its own marks."""

from __future__ import annotations

import re

__all__ = ["split_credentials"]

_SECTION = re.compile(r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END [A-Z ]+?\s*-{3,}")


def split_credentials(text: str) -> tuple[str, str]:
    """Return the JWT and the seed; empty for what is missing."""
    sections = dict(_SECTION.findall(text))
    seed = next((content for name, content in sections.items() if name.endswith("NKEY SEED")), "")
    return sections.get("NATS USER JWT", ""), seed
