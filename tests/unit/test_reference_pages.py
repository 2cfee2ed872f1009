"""Pages of the reference that are drawn from data are as the data is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("render_reference", ROOT / "tools" / "render_reference.py")
assert _spec is not None
assert _spec.loader is not None
render_reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(render_reference)


@pytest.mark.parametrize("name", render_reference.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    page = (ROOT / "docs" / "reference" / name).read_text()
    assert page == render_reference.PAGES[name](), f"run python tools/render_reference.py to draw {name} again"
