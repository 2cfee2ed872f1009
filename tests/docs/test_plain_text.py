"""The plain form of the documentation: a list of all pages with a sentence each, and all of their text."""

from __future__ import annotations

from tests.docs.test_search import tool

plain = tool("render_plain_text")
reference = tool("render_python_reference")

PAGES = {
    "start.md": "# Ten minutes\n\n```sh\npip install x\n```\n\nThis [tutorial](a.md) builds a **stream**. It ends.\n",
    "how-to/tls.md": "# TLS\n\n| a | b |\n|---|---|\n",
}
SECTIONS = [("Get started", "start.md"), ("How-to", "how-to/tls.md")]


def test_the_list_has_a_line_for_each_page():
    assert plain.index("jetlake", "JetStream for Python", SECTIONS, PAGES).splitlines() == [
        "# jetlake",
        "",
        "> JetStream for Python",
        "",
        "## Get started",
        "",
        "- [Ten minutes](start.md): This tutorial builds a stream.",
        "",
        "## How-to",
        "",
        "- [TLS](how-to/tls.md)",
    ]


def test_the_whole_text_names_each_page():
    text = plain.whole(SECTIONS, PAGES)
    assert text.index("<!-- page: start.md -->") < text.index("It ends.") < text.index("<!-- page: how-to/tls.md -->")


def test_the_reference_of_the_client_begins_with_connect():
    assert list(reference.public_names("jetlake.client"))[:3] == ["connect", "Client", "Subscription"]
