"""A headless Chromium for the page tests, and a server with its dashboard."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest
from playwright.async_api import async_playwright

import jetlake
from jetlake.cli.served_dashboard import pages
from jetlake.server import Server
from jetlake.server.config.options import Options

_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One browser for all tests; the address to drive it by."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, "these tests need Chromium; `make test` installs it"
    profile = tmp_path_factory.mktemp("chromium")
    command = [found, *_ARGUMENTS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = profile / "DevToolsActivePort"
        while not (port_file.exists() and port_file.read_text().count("\n")):
            assert process.poll() is None, "Chromium did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text().splitlines()[0]}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def browser(chromium):
    """The browser, driven from this test's loop."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(chromium)
        yield browser
        for context in browser.contexts:
            for page in context.pages:
                await page.close()


@pytest.fixture
async def server(tmp_path):
    """A server in this loop, with the dashboard on its monitoring port."""
    server = Server(tmp_path, host="127.0.0.1", port=0, jetstream=True, options=Options(http_port=-1))
    server.pages = pages(server)
    async with server:
        yield server


@pytest.fixture
async def client(server):
    async with await jetlake.connect(server.url, connect_timeout=20) as client:
        yield client


@pytest.fixture
def js(client):
    return client.jetstream()


@pytest.fixture
async def open_page(server, browser):
    """A function that opens an address of the dashboard; the test fails on any error that the page reports."""
    errors = []

    async def open_page(path="", **options):
        page = await browser.new_page(**options)
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        await page.goto(f"http://127.0.0.1:{server.monitoring.port}/{path}")
        await page.wait_for_selector("h1")
        return page

    yield open_page
    assert errors == []
