"""What a Space runs: the explorer with the models that its variables name.

Set MODEL (a Hub id, or `bundled`) and ADAPTERS (Hub ids with spaces between) in the Space's settings.
"""

import os

import gradio as gr

from app.models import load_models
from app.pages.explorer import build
from app.serving import launch

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def demo() -> gr.Blocks:
    """Builds the page for the models that the environment names."""
    return build(load_models(os.environ.get("MODEL", MODEL), os.environ.get("ADAPTERS", "").split()))


if __name__ == "__main__":
    page = demo()
    launch(page, host="0.0.0.0", port=7860)
    page.block_thread()
