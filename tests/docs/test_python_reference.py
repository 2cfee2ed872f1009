"""The reference of the Python API is whole: everything public is described, and so is what it takes."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

from tests.docs.blocks import ROOT

_spec = importlib.util.spec_from_file_location("render_python", ROOT / "tools" / "render_python_reference.py")
render = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(render)


def members(page):
    """Each public name of the page's module, and what its classes offer."""
    for name, value in render.public_names(render.PAGES[page][1]).items():
        yield name, value
        if inspect.isclass(value) and not issubclass(value, BaseException):
            yield from ((f"{name}.{member}", one) for member, one in render.public_members(value).items())


@pytest.mark.parametrize("page", render.PAGES)
def test_everything_public_is_described(page):
    drawn = render.draw(page)
    described = list(members(page))
    assert described
    for name, value in described:
        assert f"# {name}\n" in drawn
        if callable(value):
            assert inspect.getdoc(value), name


@pytest.mark.parametrize("page", render.PAGES)
def test_described_arguments_exist(page):
    for name, value in members(page):
        if not callable(value) or isinstance(value, type):
            continue
        taken = inspect.signature(value).parameters
        if any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            continue
        text = (inspect.getdoc(value) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
        for argument in [line.strip().split(":")[0] for line in text.splitlines() if line[4:5].strip()]:
            for one in argument.split(", "):
                assert one.lstrip("*") in taken, f"{name} has no argument {one}"


def test_sections_become_lists():
    drawn = render.draw("client.md")
    assert "### JetStream.publish\n" in drawn
    assert "**Raises**\n\n- `" in drawn


def test_the_overview_in_the_repository_is_current():
    command = "python tools/render_python_reference.py"
    assert render.OVERVIEW.read_text() == render.overview(), f"written by `{command}`"


def test_every_class_of_the_client_has_a_group_and_an_example():
    names = render.public_names(render.PAGES["client.md"][1])
    assert sorted(name for group in render.GROUPS.values() for name in group) == sorted(names)
    assert {name.lower() for name in names} == set(render.examples())
