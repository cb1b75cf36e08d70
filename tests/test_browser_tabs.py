"""The tabs Choose and Look around in a real browser."""

import pandas as pd
import pytest
from browser_page import ADAPTER, HOSTILE, ROOT, pick
from playwright.sync_api import expect

pytest_plugins = ["browser_fixtures"]
pytestmark = pytest.mark.slow


def choose(page, question: str, options: str) -> None:
    page.get_by_role("tab", name="Choose").click()
    page.fill("#choose-question textarea", question)
    page.fill("#choose-options textarea", options)
    page.click("#choose-button")


def test_options_as_bars_with_the_mass_off_them(open_page):
    page = open_page()
    choose(page, "What is the capital of New Caledonia?", "Majuro\nMelekeok\nNoumea\nPapeete")
    expect(page.locator("li.option")).to_have_count(4)
    values = page.locator(".option-bar.right .option-value").all_inner_texts()
    assert sum(float(value.removesuffix(" %")) for value in values) == pytest.approx(100, abs=0.3)
    assert page.locator("li.option").nth(2).locator(".option-bar.right.top").count() == 1
    expect(page.locator(".choice-note")).to_have_count(2)
    assert "of its probability is on the options" in page.locator(".choice-note").first.inner_text()
    assert "were right" in page.locator(".choice-note.right").inner_text()


def test_bars_are_the_evaluations_probabilities(open_page):
    page = open_page()
    frame = pd.read_parquet(ROOT / "adapters" / ADAPTER / "predictions.parquet").query("split == 'test'")
    for _, row in frame.sample(20, random_state=0).iterrows():
        page.evaluate("document.querySelector('.choice-view')?.remove()")
        choose(page, row["question"], "\n".join(row["choices"]))
        page.wait_for_selector(".choice-note.right")
        widths = page.eval_on_selector_all(
            ".option-bar.right .meter-fill", "bars => bars.map(bar => parseFloat(bar.style.width) / 100)"
        )
        assert widths == pytest.approx(list(row["probabilities"]), abs=1e-4)


def test_options_by_letter_and_hostile_ones(open_page):
    page = open_page()
    page.get_by_role("tab", name="Choose").click()
    page.locator("button:visible", has_text="How it is asked").click()
    page.get_by_label("the letters of listed options").check()
    choose(page, f"Which one? {HOSTILE}", f"{HOSTILE}\nanother")
    expect(page.locator("li.option").first).to_contain_text(HOSTILE)
    assert "options' letters" in page.locator(".choice-note").first.inner_text()
    assert "No evidence" in page.locator(".choice-note").first.inner_text()  # the report asked for texts


def test_mistakes_are_filtered_and_opened(open_page):
    page = open_page()
    page.get_by_role("tab", name="Look around").click()
    expect(page.locator("#diagrams svg")).to_have_count(2)
    expect(page.locator("#results tbody tr")).to_have_count(7)
    shares = page.locator(".mistake-confidence").all_inner_texts()
    numbers = [float(share.removesuffix(" %")) for share in shares]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > 90

    pick(page, "#look-subjects", "airport_country")
    page.keyboard.press("Escape")
    expect(page.locator(".mistake-answers").first).to_contain_text("· airport_country ·")
    page.locator("#look-high input[type=number]").fill("0.8")
    page.locator("#look-high input[type=number]").press("Enter")
    page.wait_for_function(
        """() => [...document.querySelectorAll('.mistake-confidence')]
            .every((one) => parseFloat(one.textContent) <= 80)"""
    )
    question = page.locator(".mistake-question").first.inner_text()
    said = page.locator(".mistake-confidence").first.inner_text()
    page.get_by_role("button", name="Choose", exact=True).locator("visible=true").first.click()
    expect(page.locator("#choose-question textarea")).to_have_value(question)
    page.wait_for_selector(".choice-note.right")
    assert said in page.locator(".option-bar.right.top").inner_text()  # what the evaluation found

    page.get_by_role("tab", name="Look around").click()
    page.locator("button[data-tab=ask]").first.click()
    expect(page.locator("#question textarea")).to_have_value(question)
    page.wait_for_selector("#answer-left .answer-note:not([hidden])")


def test_a_hostile_report_stays_text(open_page):
    page = open_page()
    page.get_by_role("tab", name="Look around").click()
    pick(page, "#look-adapter", HOSTILE)
    expect(page.locator("#diagrams h4").nth(1)).to_have_text(HOSTILE)
    expect(page.locator(".mistake-question").first).to_contain_text(HOSTILE)
    expect(page.locator("#results tbody th").first).to_have_text(HOSTILE)
    pick(page, "#look-adapter", ADAPTER)
    expect(page.locator("#diagrams h4").nth(1)).to_have_text(ADAPTER)
