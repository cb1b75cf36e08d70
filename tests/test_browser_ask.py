"""The tab Ask in a real browser."""

import json
import re

import pytest
from browser_page import ADAPTER, BASE, HOSTILE, ask, pick, wait_for_answers
from playwright.sync_api import expect

pytest_plugins = ["browser_fixtures"]
pytestmark = pytest.mark.slow


def answer(page, side: str) -> str:
    return page.eval_on_selector(f"#answer-{side} .answer-text", "one => one.textContent")


def test_streams_both_sides_then_finds_every_confidence(open_page):
    page = open_page()
    page.evaluate(
        """() => {
            window.lengths = [];
            const text = document.querySelector('#answer-left .answer-text');
            new MutationObserver(() => window.lengths.push(text.childElementCount))
                .observe(text, {childList: true});
        }"""
    )
    page.fill("#question textarea", "What is the capital of Australia?")
    page.press("#question textarea", "Enter")
    page.wait_for_function(  # all is found
        """() => document.querySelectorAll('.figure').length === 8
        && ![...document.querySelectorAll('.figure')].some((one) => one.textContent.includes('waiting'))"""
    )
    lengths = page.evaluate("window.lengths")
    assert len(lengths) > 3 and lengths == sorted(lengths)  # appended token by token, never drawn anew
    assert "Canberra" in answer(page, "left") and answer(page, "right")
    expect(page.locator("#answer-left .answer-name")).to_have_text(BASE)
    expect(page.locator("#answer-right .answer-name")).to_have_text(ADAPTER)
    for side in ("left", "right"):
        figures = page.locator(f"#figures-{side} .figure")
        expect(figures).to_have_count(4)
        worth = r"\d+ % were right \(\d+ to \d+ %\) of \d+ answers?|No evidence at this confidence"
        assert re.search(worth, figures.first.inner_text())
        expect(figures.first.locator("svg .mark")).to_have_count(1)


def test_card_by_hover_keyboard_and_branch(open_page):
    page = open_page()
    ask(page, "What is the capital of Australia?")
    before, right = answer(page, "left"), answer(page, "right")
    tokens = page.locator("#answer-left .token")
    place = next(i for i, text in enumerate(tokens.all_text_contents()) if "Canberra" in text)
    tokens.nth(place).hover()
    card = page.locator("#token-card")
    expect(card).to_be_visible()
    for said in ("rank", "entropy", "nats", "after temperature and nucleus"):
        assert said in card.inner_text()
    assert card.locator("button.alternative").count() == 10
    page.mouse.move(2, 2)
    expect(card).to_be_hidden()

    tokens.first.focus()
    for _ in range(place):
        page.keyboard.press("ArrowRight")
    expect(card).to_be_visible()
    expect(card.locator(".card-token")).to_contain_text("Canberra")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")  # from the token itself to the next most probable
    other = card.locator("button.alternative").nth(1).locator("code").inner_text().replace("␣", " ")
    page.keyboard.press("Enter")
    expect(card).to_be_hidden()
    page.wait_for_function(
        "([before]) => document.querySelector('#answer-left .answer-text').textContent !== before",
        arg=[before],
    )
    wait_for_answers(page)
    assert answer(page, "left").startswith(before[: before.index(" Canberra")] + other)
    assert answer(page, "right") == right  # the other side stays


def test_words_have_no_gaps(open_page):
    page = open_page()
    ask(page, "Who wrote the novel Middlemarch?")
    gaps = page.evaluate(
        """() => [...document.querySelectorAll('#answer-left .token')].map((one) => one.getClientRects()[0])
            .filter(Boolean)
            .map((box, i, all) => i && all[i - 1].top === box.top ? box.left - all[i - 1].right : 0)"""
    )
    assert len(gaps) > 5 and max(map(abs, gaps)) < 0.6


def test_stop_leaves_what_there_is(open_page):
    page = open_page()
    page.fill("#question textarea", "Tell me everything about the history of Rome.")
    page.click("#ask-button")
    page.wait_for_selector("#answer-left .token")
    page.click("#stop-button")
    page.wait_for_selector("#answer-left:not(:has(.streaming)) .answer-note:not([hidden])")
    kept = answer(page, "left")
    page.wait_for_timeout(3000)
    assert answer(page, "left") == kept
    ask(page, "What is the capital of France?")  # the model is free again
    assert "Paris" in answer(page, "left")


def test_comparing_exporting_and_linking(open_page, tmp_path):
    page = open_page()
    pick(page, "#left-model", ADAPTER)
    pick(page, "#right-model", HOSTILE)
    ask(page, f"What is the capital of Kenya? {HOSTILE}")
    expect(page.locator("#answer-right .answer-name")).to_have_text(HOSTILE)
    assert answer(page, "left") == answer(page, "right")  # the same weights under another name

    with page.expect_download() as waiting:
        page.click("#save-json")
    waiting.value.save_as(tmp_path / "session.json")
    session = json.loads((tmp_path / "session.json").read_text())
    (entry,) = session["entries"]
    assert entry["form"]["question"].endswith(HOSTILE)
    assert [one["model"] for one in entry["answers"]] == [ADAPTER, HOSTILE]
    assert entry["answers"][0]["text"] == answer(page, "left")
    with page.expect_download() as waiting:
        page.click("#save-picture")
    waiting.value.save_as(tmp_path / "answer.png")
    assert (tmp_path / "answer.png").read_bytes().startswith(b"\x89PNG")

    page.click("#copy-link")
    expect(page.locator("#explorer-toast")).to_contain_text("copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    again = open_page("?" + link.partition("?")[2])
    again.wait_for_selector("#answer-left .token")
    wait_for_answers(again)
    assert answer(again, "left") == answer(page, "left")
    expect(again.locator("#answer-right .answer-name")).to_have_text(HOSTILE)
