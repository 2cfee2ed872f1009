"""Every metric of `/metrics` stands on its page with the words of its help."""

from __future__ import annotations

import re
from pathlib import Path

from jetlake.server.shell.monitoring.metrics import metrics_text
from jetlake.store.steps import finish

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


async def test_the_page_has_every_metric(jetlake_server):
    families = dict(re.findall(r"^# HELP (\S+) (.+)$", finish(metrics_text(jetlake_server)), re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", finish(metrics_text(jetlake_server)), re.MULTILINE))
    rows = dict(re.findall(r"^\| `(\w+)` \| \w+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert rows == families
    for name, kind in kinds.items():
        assert f"| `{name}` | {kind} |" in PAGE.read_text()
