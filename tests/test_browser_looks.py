"""How the page looks: screenshots to be looked at, accessibility, and a phone's width."""

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_page import ask
from playwright.sync_api import expect

pytest_plugins = ["browser_fixtures"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Where the screenshots go: $SCREENSHOTS if that is set."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def assert_accessible(page) -> None:
    found = Axe().run(page).response["violations"]
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    assert not serious, [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in serious]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_every_tab_fits_and_is_accessible(open_page, pictures, width, dark):
    page = open_page(width=width, dark=dark)
    name = f"{'phone' if width < 500 else 'desktop'}-{'dark' if dark else 'light'}"
    ask(page, "What is the capital of Australia?")
    token = page.locator("#answer-left .token").nth(5)
    token.scroll_into_view_if_needed()
    if width < 500:
        token.tap()
    else:
        token.hover()
    expect(page.locator("#token-card")).to_be_visible()
    page.screenshot(path=pictures / f"ask-card-{name}.png")
    assert_accessible(page)
    page.keyboard.press("Escape")
    page.mouse.move(1, 1)
    page.screenshot(path=pictures / f"ask-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("tab", name="Choose").click()
    page.get_by_text("What is the capital of New Caledonia?").click()
    expect(page.locator("#choose-question textarea")).not_to_be_empty()
    page.click("#choose-button")
    page.wait_for_selector(".choice-note.right")
    assert_accessible(page)
    page.screenshot(path=pictures / f"choose-{name}.png", full_page=True)
    page.get_by_role("tab", name="Look around").click()
    page.wait_for_selector(".mistake")
    assert_accessible(page)
    page.screenshot(path=pictures / f"look-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
