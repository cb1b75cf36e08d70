"""The tab Choose: a multiple-choice question, and what two models give to each option."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from app.choosing import choose, read_question
from app.evidence import option_evidence, report_of
from app.models import Models
from app.pages.parts import MODEL, STYLES, data_choice, default_sides, panel, shown_faults
from app.reports import ALL_SETS, Bin
from app.session import Chosen, Session
from app.views.options import options_html

EXAMPLES = (
    ("What is the capital of New Caledonia?", "Majuro\nMelekeok\nNoumea\nPapeete", "C"),
    ("Which element has the atomic number 74?", "Tantalum\nTungsten\nRhenium\nOsmium", "B"),
    ("What is the official currency of Bhutan?", "Rupee\nTaka\nKyat\nNgultrum", "D"),
)

UNKNOWN = "not given"

FORMS = {"the options' texts (cloze)": "cloze", "the letters of listed options": "letter"}
SCORES = {"the mean over its tokens": "token", "their sum": "sum", "the mean over its bytes": "byte"}


@dataclass(frozen=True)
class ChooseTab:
    """Components of the tab that others fill in.

    Attributes:
        question: The question.
        options: One option a line.
        answer: Letter of the right one.
        left: Model on the left.
        right: Model on the right.
        form: Whether texts or letters are scored.
        data: Test set that says what a confidence has been worth.
    """

    question: gr.Textbox
    options: gr.Textbox
    answer: gr.Dropdown
    left: gr.Dropdown
    right: gr.Dropdown
    form: gr.Radio
    data: gr.Dropdown


def choose_tab(models: Models, session: gr.State) -> ChooseTab:
    """Builds the tab.

    Args:
        models: The models.
        session: What was asked in this visit, a `Session`.
    """
    left_name, right_name = default_sides(models, open_ended=False)
    prompt = default_prompt(models, right_name)
    letters = [UNKNOWN, *"ABCDEFGHIJ"]
    with gr.Row(equal_height=True):
        with gr.Column(scale=3, min_width=300):
            question = gr.Textbox(label="Question", lines=2, max_lines=6, elem_id="choose-question")
            options = gr.Textbox(label="Options, one a line", lines=4, max_lines=10, elem_id="choose-options")
        with gr.Column(scale=2, min_width=260):
            left = gr.Dropdown(list(models.names), value=left_name, label="First", elem_id="choose-left")
            right = gr.Dropdown(list(models.names), value=right_name, label="Second", elem_id="choose-right")
            with gr.Row():
                answer = gr.Dropdown(letters, value=UNKNOWN, label="Right answer", min_width=120)
                data = data_choice(models, left, right, open_ended=False)
            button = gr.Button("Choose", variant="primary", elem_id="choose-button")
    gr.Examples(
        [list(one) for one in EXAMPLES],
        [question, options, answer],
        label="Examples",
        example_labels=[text for text, _, _ in EXAMPLES],
    )
    with gr.Accordion("How it is asked", open=False), gr.Row():
        form = gr.Radio(list(FORMS.items()), value=prompt["form"], label="The model gives a probability to")
        style = gr.Radio(
            list(STYLES.items()),
            value=prompt["style"],
            label="The question is put",
        )
        score = gr.Radio(list(SCORES.items()), value=prompt["score"], label="An option's log-probability is")
    result = panel("choice")
    fields = [question, options, answer, left, right, form, style, score, data]
    gr.on(
        [button.click, question.submit],
        partial(chosen, models),
        [session, *fields],
        [result, session],
        concurrency_id=MODEL,
        concurrency_limit=1,
        api_visibility="private",
        show_progress="minimal",
    )
    return ChooseTab(question, options, answer, left, right, form, data)


def chosen(models: Models, session: Session, *fields: Any) -> tuple[str, Session]:
    """Lets both models choose, and shows it."""
    text, options, letter, left, right, form, style, score, data = fields
    with shown_faults():
        answer = None if letter in (None, UNKNOWN) else "ABCDEFGHIJ".index(letter)
        question = read_question(text or "", options or "", answer)
        answer = question.answer if answer is not None else None
        names = [left] if left == right else [left, right]
        asked: dict[str, Any] = {"form": form, "style": style, "score": score}
        choices = tuple(
            choose(
                models, name, question, bins=_bins(models, name, partner, data or ALL_SETS, asked), **asked
            )
            for name, partner in zip(names, reversed(names), strict=True)
        )
    entry = Chosen(question.text, question.choices, answer, asked, choices)
    return options_html(question.choices, answer, choices, form), session.add(entry)


def default_prompt(models: Models, name: str) -> dict[str, str]:
    """Returns how a model's report put its questions: form, style and score."""
    adapter = models.adapter(name)
    if adapter and adapter.report:
        return adapter.report.prompt
    return {"form": "cloze", "style": "plain", "score": "token"}


def _bins(models: Models, name: str, partner: str, data: str, asked: dict[str, Any]) -> tuple[Bin, ...]:
    """Returns a model's reliability diagram, or none where its report put the questions in another way."""
    report, _ = report_of(models, name, partner)
    if report is None or report.prompt != asked:
        return ()
    return option_evidence(models, name, partner, data).bins
