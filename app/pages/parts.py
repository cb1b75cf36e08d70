"""What the tabs share: components of the page's own, and how faults reach the reader."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr

from app.evidence import data_sets
from app.models import Models
from toolkit.errors import CalibrantError

MODEL = "model"
"""The queue that all events share which run the model."""

STYLES = {"through the chat template": "chat", "as a plain question": "plain"}
"""How a question is put, as the page says it."""


def answer_view(name: str, model: str) -> gr.HTML:
    """Returns the component that shows a model's answer; see `answer` in explorer.js."""
    return gr.HTML(
        value={"model": model, "note": "", "html": [], "streaming": False},
        html_template=(
            '<h3 class="answer-name"></h3>'
            f'<div class="answer-text" role="group" aria-label="Answer on the {name}"></div>'
            '<p class="answer-note" hidden></p>'
        ),
        js_on_load="explorer.answer(element, props, trigger, watch); // triggers 'branch'",
        apply_default_css=False,
        elem_id=f"answer-{name}",
        elem_classes=["answer", f"side-{name}"],
    )


def panel(name: str, value: str = "", label: str = "") -> gr.HTML:
    """Returns a component for HTML that the views make."""
    return gr.HTML(
        value=value,
        elem_id=name,
        elem_classes=[name],
        apply_default_css=False,
        js_on_load="explorer.rows(element, props, trigger); // triggers 'open'",
    )


def download(button: gr.Button, make: Callable[..., dict[str, str]], inputs: list[Any]) -> None:
    """Lets a button download what a function makes, without a file on the server."""
    file = gr.JSON(visible=False)
    button.click(make, inputs, file, api_visibility="private", show_progress="hidden").then(
        None, file, js="(file) => { explorer.download(file); }", api_visibility="private"
    )


@contextmanager
def shown_faults() -> Iterator[None]:
    """Shows a fault that the reader can mend as a message on the page, as text."""
    try:
        yield
    except CalibrantError as error:
        raise gr.Error(escape(str(error)), print_exception=False, duration=8) from error


def default_sides(models: Models, *, open_ended: bool) -> tuple[str, str]:
    """Returns the models that are compared at first: the base, and an adapter.

    The adapter is the first that was measured on such questions, if there is one.
    """
    first = models.names[min(1, len(models.names) - 1)]
    for name, adapter in models.adapters.items():
        if adapter.report and (adapter.report.open_sets if open_ended else adapter.report.sets):
            return models.base, name
    return models.base, first


def data_choice(models: Models, left: gr.Dropdown, right: gr.Dropdown, *, open_ended: bool) -> gr.Dropdown:
    """Returns the choice of the set of questions that says what a confidence has been worth.

    It offers those that the models on the left and on the right were measured on.

    Args:
        models: The models.
        left: Model on the left.
        right: Model on the right.
        open_ended: Whether to offer sets of open-ended questions too.
    """
    sets = data_sets(models, *default_sides(models, open_ended=open_ended), open_ended=open_ended) or [""]
    data = gr.Dropdown(
        sets,
        value=sets[0],
        label="What it is worth: results on",
        min_width=160,
        elem_id="ask-data" if open_ended else "choose-data",
    )

    def offer(left: str, right: str, chosen: str) -> Any:
        sets = data_sets(models, left, right, open_ended=open_ended) or [""]
        return gr.Dropdown(sets, value=chosen if chosen in sets else sets[0])

    gr.on(
        [left.change, right.change],
        offer,
        [left, right, data],
        [data],
        api_visibility="private",
        show_progress="hidden",
    )
    return data
