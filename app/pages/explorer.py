"""The page: its heading, its tabs, and its look."""

from pathlib import Path
from typing import Any

import gradio as gr

from app.answers import LONGEST_QUESTION
from app.api import add_api
from app.models import Models
from app.pages.ask import AskTab, ask_tab
from app.pages.choose import UNKNOWN, ChooseTab, choose_tab
from app.pages.look import LookTab, look_tab, prediction
from app.pages.parts import STYLES
from app.session import Session

STATIC = Path(__file__).parents[1] / "static"
TITLE = "calibrant · confidence explorer"


def build(models: Models) -> gr.Blocks:
    """Builds the page for some models; nothing is served yet."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as page:
        session = gr.State(Session())
        gr.HTML(
            '<header class="masthead"><h1>Confidence explorer</h1>'
            "<p>Where is the model sure, word by word, and should it be?</p></header>",
            apply_default_css=False,
        )
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Ask", id="ask"):
                asking = ask_tab(models, session)
            with gr.Tab("Choose", id="choose"):
                choosing = choose_tab(models, session)
            with gr.Tab("Look around", id="look"):
                looking = look_tab(models)
        if looking is not None:
            open_rows(models, tabs, asking, choosing, looking)
        open_links(models, page, tabs, asking, choosing)
        add_api(models)
    return page


def open_rows(models: Models, tabs: gr.Tabs, asking: AskTab, choosing: ChooseTab, looking: LookTab) -> None:
    """Lets an answer of a report be opened in the tabs that ask it again."""

    def opened(name: str, event: gr.EventData) -> list[Any]:
        row, tab = prediction(models, name, int(event.row)), str(event.tab)
        if row is None or tab not in ("ask", "choose"):
            return [gr.skip()] * 8
        letter = "ABCDEFGHIJ"[row["answer"]] if row["answer"] < 10 else UNKNOWN
        pair = [models.base, name]
        if tab == "ask":
            return [gr.Tabs(selected=tab), row["question"], *pair, *[gr.skip()] * 4]
        options = "\n".join(row["choices"])
        return [
            gr.Tabs(selected=tab),
            gr.skip(),
            gr.skip(),
            gr.skip(),
            row["question"],
            options,
            letter,
            name,
        ]

    filled = [tabs, asking.question, asking.left, asking.right]
    filled += [choosing.question, choosing.options, choosing.answer, choosing.right]
    looking.answers.open(
        opened, looking.adapter, filled, api_visibility="private", show_progress="hidden"
    ).success(None, None, None, js="() => explorer.press()", api_visibility="private")


def open_links(models: Models, page: gr.Blocks, tabs: gr.Tabs, asking: AskTab, choosing: ChooseTab) -> None:
    """Lets a link bring its question: `?q=`, with `left`, `right`, `style`, and `o` for each option."""

    def opened(request: gr.Request) -> list[Any]:
        found = request.query_params
        question, options = found.get("q", ""), found.get("o", "")
        if not question:
            return [gr.skip()] * 10
        sides = [
            name if (name := found.get(side)) in models.names else gr.skip() for side in ("left", "right")
        ]
        style = value if (value := found.get("style")) in STYLES.values() else gr.skip()
        if not options:
            return [gr.skip(), question[:LONGEST_QUESTION], *sides, style, *[gr.skip()] * 5]
        answer = value if (value := found.get("answer")) and value in "ABCDEFGHIJ" else UNKNOWN
        filled = [question[:LONGEST_QUESTION], options, answer, *sides]
        return [gr.Tabs(selected="choose"), *[gr.skip()] * 4, *filled]

    fields = [tabs, asking.question, asking.left, asking.right, asking.style]
    fields += [choosing.question, choosing.options, choosing.answer, choosing.left, choosing.right]
    page.load(opened, None, fields, api_visibility="private", show_progress="hidden").success(
        None, None, None, js="() => explorer.openLink()", api_visibility="private"
    )


def look() -> dict[str, Any]:
    """Returns what `launch` needs for the page's look: theme, styles and script."""
    script = (STATIC / "explorer.js").read_text(encoding="utf-8")
    fonts = ("system-ui", "-apple-system", "Segoe UI", "sans-serif")
    mono = ("ui-monospace", "Menlo", "Consolas", "monospace")
    theme = gr.themes.Base(neutral_hue="slate", font=fonts, font_mono=mono, radius_size="lg").set(
        button_primary_background_fill="#0b6bb3",
        button_primary_background_fill_hover="#095a97",
        button_primary_background_fill_dark="#0b6bb3",
        button_primary_background_fill_hover_dark="#0a62a4",
        button_primary_text_color="#ffffff",
        color_accent="#0b6bb3",
        checkbox_border_radius="4px",
    )
    return {"theme": theme, "css_paths": [STATIC / "explorer.css"], "head": f"<script>{script}</script>"}
