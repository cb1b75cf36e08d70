"""The tab Ask: one question, two answers side by side, and how sure each is of itself."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import gradio as gr

from app.answers import KINDS, MEASURES, MOST_SAMPLES, MOST_TOKENS, Answer, Form, Kind
from app.asking import answers, further, token_figure
from app.evidence import answer_evidence
from app.models import Models
from app.pages.parts import (
    MODEL,
    STYLES,
    answer_view,
    data_choice,
    default_sides,
    download,
    panel,
    shown_faults,
)
from app.session import Asked, Branch, Session
from app.views.figures import figures_html
from app.views.picture import picture
from app.views.tokens import legend_html, token_html
from toolkit.errors import CalibrantError
from toolkit.questions.prompts import Style

EXAMPLES = (
    "What is the capital of Australia?",
    "Which chemical element has the symbol W?",
    "Who wrote the novel Middlemarch?",
    "What is the currency of Bhutan?",
    "In which year did the Chernobyl disaster happen?",
)

ELICITED = {
    "in a second turn": "two_stage",
    "in a second turn, after reasoning": "reasoning",
    "with a new answer": "one_stage",
    "with several guesses": "top_k",
    "as a phrase": "linguistic",
}


@dataclass(frozen=True)
class AskTab:
    """Components of the tab that others fill in.

    Attributes:
        question: The question.
        left: Model on the left.
        right: Model on the right.
        style: How the question is put.
        button: Asks.
    """

    question: gr.Textbox
    left: gr.Dropdown
    right: gr.Dropdown
    style: gr.Radio
    button: gr.Button


def ask_tab(models: Models, session: gr.State) -> AskTab:
    """Builds the tab.

    Args:
        models: The models.
        session: What was asked in this visit, a `Session`.
    """
    left_name, right_name = default_sides(models, open_ended=True)
    with gr.Row(equal_height=True, elem_classes="ask-row"):
        question = gr.Textbox(
            label="Your question",
            placeholder="Ask something that has a short answer",
            lines=1,
            max_lines=6,
            autofocus=True,
            scale=5,
            min_width=260,
            submit_btn=False,
            elem_id="question",
        )
        with gr.Column(scale=1, min_width=130):
            button = gr.Button("Ask", variant="primary", elem_id="ask-button")
            stop = gr.Button("Stop", size="sm", elem_id="stop-button")
    gr.Examples([[text] for text in EXAMPLES], [question], label="Examples", elem_id="examples")
    with gr.Row():
        names = list(models.names)
        left = gr.Dropdown(names, value=left_name, label="Left", min_width=200, elem_id="left-model")
        right = gr.Dropdown(names, value=right_name, label="Right", min_width=200, elem_id="right-model")
        data = data_choice(models, left, right, open_ended=True)
    with gr.Accordion("How it is asked", open=False, elem_id="settings"):
        with gr.Row():
            style = gr.Radio(
                list(STYLES.items()),
                value=default_style(models, right_name),
                label="The question is put",
            )
            elicitation = gr.Dropdown(
                list(ELICITED.items()), value="two_stage", label="Stated confidence is asked for"
            )
            measure = gr.Dropdown(
                [(label, name) for name, label in MEASURES.items()],
                value="length_normalised",
                label="Token confidence of an answer",
            )
        with gr.Row():
            temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0: the most probable token)")
            top_p = gr.Slider(0.05, 1, 1, step=0.05, label="Nucleus (top-p)")
            max_tokens = gr.Slider(1, MOST_TOKENS, 48, step=1, label="Most tokens")
        with gr.Row():
            kinds = gr.CheckboxGroup(
                [(KINDS[kind], kind) for kind in KINDS if kind != "token"],
                value=[kind for kind in KINDS if kind != "token"],
                label="Also find",
            )
            samples = gr.Slider(2, MOST_SAMPLES, 8, step=1, label="Samples for the agreement")
            seed = gr.Number(0, precision=0, label="Seed", minimum=0, maximum=2**31 - 1)
    gr.HTML(legend_html(), apply_default_css=False)
    status = panel("status", "")
    with gr.Row(elem_classes="sides"):
        columns = []
        for side, model in (("left", left_name), ("right", right_name)):
            with gr.Column(min_width=320, elem_classes=f"side-{side}"):
                columns.append((answer_view(side, model), panel(f"figures-{side}")))
    (left_view, left_figures), (right_view, right_figures) = columns
    with gr.Row(elem_classes="exports"):
        as_json = gr.Button("Save session as JSON", size="sm", elem_id="save-json")
        as_picture = gr.Button("Save as picture", size="sm", elem_id="save-picture")
        copy = gr.Button("Copy link to this question", size="sm", elem_id="copy-link")

    fields: list[Any] = [
        question, left, right, style, temperature, top_p, max_tokens, seed,
        measure, kinds, elicitation, samples, data,
    ]  # fmt: skip
    views = [left_view, right_view]
    shown: list[Any] = [*views, left_figures, right_figures, session]
    runs: dict[str, Any] = {
        "concurrency_id": MODEL,
        "concurrency_limit": 1,
        "api_visibility": "private",
        "show_progress_on": [status],
    }
    starts: list[tuple[Callable[..., Any], Callable[..., Iterator[Shown]], list[Any]]] = [
        (partial(gr.on, [button.click, question.submit]), partial(ask, models), [session, *fields]),
        (left_view.branch, brancher(models, 0), [session]),
        (right_view.branch, brancher(models, 1), [session]),
    ]
    events = []
    for start, fn, inputs in starts:
        event = start(fn, inputs, shown, show_progress="minimal", **runs)
        events.append(event)
        for kind in KINDS:
            if kind != "token":
                event = event.success(
                    partial(follow, models, kind), [session], shown, show_progress="hidden", **runs
                )
                events.append(event)
    stop.click(
        partial(stopped, models), [session], shown[:-1], cancels=events, api_visibility="private", queue=False
    )
    gr.on(
        [measure.change, data.change],
        partial(judged, models),
        [session, measure, data],
        shown[2:],
        api_visibility="private",
        show_progress="hidden",
    )
    copy.click(
        None,
        [question, left, right, style],
        js="(q, left, right, style) => { explorer.copyLink({ q, left, right, style }); }",
        api_visibility="private",
    )
    download(as_json, save_json, [session])
    download(as_picture, save_picture, [session])
    return AskTab(question, left, right, style, button)


Shown = tuple[Any, Any, Any, Any, Any]
"""Values of both answers, both panels of figures, and the session."""


def ask(models: Models, session: Session, *fields: Any) -> Iterator[Shown]:
    """Answers a question on both sides, token by token."""
    with shown_faults():
        form = read_form(models, fields)
        pair = (Answer(form.left), Answer(form.right))
        yield from _stream(models, session.add(Asked(form, pair)), (0, 1), ([], []))


def brancher(models: Models, side: int) -> Callable[[Session, gr.EventData], Iterator[Shown]]:
    """Returns what happens when an alternative is clicked on one side."""

    def clicked(session: Session, event: gr.EventData) -> Iterator[Shown]:
        yield from branch(models, session, side, event.place, event.id)

    return clicked


def branch(models: Models, session: Session, side: int, place: int, token: int) -> Iterator[Shown]:
    """Puts an alternative in the place of a token and lets the model go on from there."""
    with shown_faults():
        before = session.asked
        tokens = before.answers[side].tokens if before is not None else ()
        found = [one for old in tokens[place : place + 1] for one in old.alternatives if one.id == token]
        if before is None or place < 0 or not found:
            raise CalibrantError("this answer is no longer there; ask again")
        begun = [*(token.id for token in tokens[:place]), found[0].id]
        entry = replace(before, branch=Branch(side, place, found[0].text))
        session = session.add(entry).update(side, Answer(before.form.names[side]))
        yield from _stream(models, session, (side,), (begun, begun))


def _stream(
    models: Models, session: Session, sides: Sequence[int], begun: Sequence[Sequence[int]]
) -> Iterator[Shown]:
    """Yields the page as tokens come to the newest entry's answers, which begin with the given ones."""
    entry = _newest(session)
    html = [_html(answer) for answer in entry.answers]
    yield _page(models, session, html, sides)
    for side, answer in answers(models, entry.form, sides, begun):
        session = session.update(side, answer)
        html[side] += [
            token_html(token, place)
            for place, token in enumerate(answer.tokens[len(html[side]) :], start=len(html[side]))
        ]
        view = _view(entry.form, answer, html[side], True)
        yield (view, gr.skip(), gr.skip(), gr.skip(), session) if side == 0 else (
            gr.skip(), view, gr.skip(), gr.skip(), session
        )  # fmt: skip
    for side in sides:
        session = session.update(side, token_figure(_newest(session).answers[side], entry.form.measure))
    yield _page(models, session, html)


def follow(models: Models, kind: Kind, session: Session) -> Iterator[Shown]:
    """Finds one more kind of confidence in the newest answers."""
    entry = session.asked
    with shown_faults():
        for side in (0, 1):
            if entry is None or kind not in entry.form.kinds or entry.answers[side].figure(kind):
                continue
            session = session.update(side, further(models, entry.form, _newest(session).answers[side], kind))
            yield (gr.skip(), gr.skip(), *_figures(models, session), session)


def stopped(models: Models, session: Session) -> tuple[Any, ...]:
    """Shows what there is when the reader stops the model."""
    if session.asked is None:
        return (gr.skip(),) * 4
    html = [_html(answer) for answer in session.asked.answers]
    views = _page(models, session, html)[:2]
    return (*views, *_figures(models, session, waiting=False))


def judged(models: Models, session: Session, measure: str, data: str) -> tuple[Any, ...]:
    """Shows the newest answers' figures by another measure, or judged by another test set."""
    entry = session.asked
    if entry is None:
        return (gr.skip(),) * 3
    session = session.judge(replace(entry.form, measure=measure, data=data))
    for side, answer in enumerate(entry.answers):
        if answer.figure("token"):
            session = session.update(side, token_figure(answer, measure))
    return (*_figures(models, session, waiting=False), session)


def default_style(models: Models, name: str) -> str:
    """Returns how the adapter's report put its open-ended questions, or else what suits the base."""
    adapter = models.adapter(name)
    if adapter and adapter.report and adapter.report.open_sets:
        return adapter.report.prompt["style"]
    return "chat" if models.tokenizer.chat_template else "plain"


def save_json(session: Session) -> dict[str, str]:
    """Returns the session as a file for the browser."""
    text = json.dumps(session.export(), indent=2, ensure_ascii=False)
    return {"name": "calibrant-session.json", "type": "application/json", "text": text}


def save_picture(session: Session) -> dict[str, str]:
    """Returns the newest question with its answers as a picture for the browser."""
    with shown_faults():
        if session.asked is None:
            raise CalibrantError("nothing has been asked yet; ask first")
        image = b64encode(picture(session.asked)).decode("ascii")
    return {"name": "calibrant-answer.png", "type": "image/png", "base64": image}


def read_form(models: Models, fields: Sequence[Any]) -> Form:
    """Reads the fields of the page, in the order of `Form`.

    Raises:
        CalibrantError: A field holds what the page does not offer.
    """
    question, left, right, style, *others, kinds, elicitation, samples, data = fields
    temperature, top_p, max_tokens, seed, measure = others
    for name in (left, right):
        models.adapter(name)
    for value, known in ((style, get_args(Style)), (measure, MEASURES), (elicitation, ELICITED.values())):
        if value not in known:
            raise CalibrantError(f"{value!r} is not offered; choose one of {', '.join(known)}")
    return Form(
        str(question).strip(),
        left,
        right,
        style,
        float(temperature),
        float(top_p),
        int(max_tokens),
        int(seed or 0),
        measure,
        tuple(kind for kind in KINDS if kind in kinds),
        elicitation,
        int(samples),
        data or "",
    )


def _newest(session: Session) -> Asked:
    assert session.asked is not None
    return session.asked


def _html(answer: Answer) -> list[str]:
    return [token_html(token, place) for place, token in enumerate(answer.tokens)]


def _page(
    models: Models, session: Session, html: Sequence[list[str]], streaming: Sequence[int] = ()
) -> Shown:
    entry = _newest(session)
    left, right = (
        _view(entry.form, answer, html[side], side in streaming) for side, answer in enumerate(entry.answers)
    )
    return (left, right, *_figures(models, session), session)


def _view(form: Form, answer: Answer, html: list[str], streaming: bool) -> dict[str, Any]:
    count = len(answer.tokens)
    said = f"{count} token{'' if count == 1 else 's'}" if count else "it ended at once, without a word"
    notes = [
        said + ("" if answer.ended or streaming or count < form.max_tokens else ", cut at the limit"),
        "asked through the chat template" if form.style == "chat" else "asked as a plain question",
        f"drawn at temperature {form.temperature:g}, nucleus {form.top_p:g}"
        if form.temperature
        else "the most probable token each time",
    ]
    note = "" if streaming and not count else " · ".join(notes)
    return {"model": answer.model, "note": note, "html": list(html), "streaming": streaming}


def _figures(models: Models, session: Session, waiting: bool = True) -> tuple[str, str]:
    entry = _newest(session)
    form = entry.form
    left, right = (
        figures_html(
            answer,
            [kind for kind in KINDS if waiting and (kind == "token" or kind in form.kinds)],
            answer_evidence(models, form, answer.model, partner),
        )
        for answer, partner in zip(entry.answers, form.names[::-1], strict=True)
    )
    return left, right
