"""What the tests in a real browser share: an adapter that means harm, and how a question is asked."""

import json
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pandas as pd
from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
ADAPTER = "smollm2-135m-worldfacts-calm"
BASE = "SmolLM2-135M-Instruct"
HOSTILE = "<img src=x onerror=window.hacked=1>"
PATIENCE = 120_000
"""Milliseconds that a step may take: other work may keep the processors busy."""


def chromium() -> str | None:
    """A Chromium of the system, or None for one that Playwright has installed itself."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def hostile_adapter(folder: Path) -> Path:
    """A copy of the adapter whose name, report and predictions try to run a script."""
    adapter = folder / HOSTILE
    shutil.copytree(ROOT / "adapters" / ADAPTER, adapter)
    report = json.loads((adapter / "report.json").read_text())
    report["results"][0]["data"]["name"] = HOSTILE
    (adapter / "report.json").write_text(json.dumps(report))
    frame = pd.read_parquet(adapter / "predictions.parquet")
    frame["question"] = HOSTILE + frame["question"]
    frame["subject"] = HOSTILE
    frame["choices"] = [[HOSTILE, *choices[1:]] for choices in frame["choices"]]
    frame.to_parquet(adapter / "predictions.parquet")
    return adapter


def wait_for_address(server: subprocess.Popen[str], seconds: float) -> str:
    """Reads the address that the server prints once it is up."""
    assert server.stdout is not None
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        if select.select([server.stdout], [], [], 1)[0]:
            found = re.search(r"http://\S+", server.stdout.readline())
            if found:
                return found[0]
    server.kill()
    raise AssertionError("the explorer did not come up")


def ask(page: Page, question: str) -> None:
    """Asks a question, waits for both answers, and lets the model find nothing more."""
    page.evaluate("document.querySelectorAll('.figures').forEach((one) => one.setAttribute('data-old', ''))")
    page.fill("#question textarea", question)
    page.press("#question textarea", "Enter")
    page.wait_for_function("() => !document.querySelector('.figures[data-old]')")
    wait_for_answers(page)
    page.click("#stop-button")


def wait_for_answers(page: Page) -> None:
    """Waits until both answers are whole and their token confidence is there."""
    page.wait_for_selector("#answer-left .streaming, #answer-right .streaming, .figures")
    page.wait_for_function(
        """() => !document.querySelector('.answer .streaming, .answer.streaming')
        && [...document.querySelectorAll('.figure:first-child .figure-value')].filter((one) =>
            one.textContent !== '…').length === 2"""
    )


def pick(page: Page, field: str, name: str) -> None:
    """Picks an entry of a dropdown."""
    page.click(f"{field} input")
    page.get_by_role("option", name=name, exact=True).locator("visible=true").last.click()
