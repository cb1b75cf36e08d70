"""Fixtures for the page in a real browser: the explorer's own command, and headless Chromium."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import ADAPTER, PATIENCE, ROOT, chromium, hostile_adapter, wait_for_address
from playwright.sync_api import Browser, Page, sync_playwright

OWN = ("http://127.0.0.1", "data:", "blob:")
"""What the page may ask for: it needs no other server."""


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the explorer with the bundled model, its adapter, and a hostile one."""
    adapters = [ROOT / "adapters" / ADAPTER, hostile_adapter(tmp_path_factory.mktemp("adapters"))]
    named = [part for adapter in adapters for part in ("--adapter", str(adapter))]
    log = tmp_path_factory.mktemp("server") / "stderr"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "app", *named],
            cwd=ROOT,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        try:
            yield wait_for_address(server, 240)
        finally:
            server.terminate()
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = chromium()
        if path is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no Chromium here; install the system's, or run: playwright install chromium")
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Opens the page; at the end no script has failed or been smuggled in, nothing came from elsewhere."""
    opened: list[tuple[Page, list[str]]] = []

    def open_one(query: str = "", *, width: int = 1280, dark: bool = False) -> Page:
        phone: dict[str, Any] = {"is_mobile": True, "has_touch": True} if width < 500 else {}
        context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light", **phone
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address.rstrip("/"))
        page, faults = context.new_page(), []
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: faults.extend([said.text] if said.type == "error" else []))
        page.on("pageerror", lambda error: faults.extend([str(error)]))
        page.on("request", lambda asked: faults.extend([] if asked.url.startswith(OWN) else [asked.url]))
        page.goto(address + query)
        page.wait_for_selector("#ask-button")
        page.wait_for_selector("#answer-left .answer-text", state="attached")
        opened.append((page, faults))
        return page

    yield open_one
    for page, faults in opened:
        assert not page.evaluate("window.hacked")
        assert faults == []
        page.context.close()
