"""Serving the page."""

import gradio as gr

from app.pages.explorer import look
from toolkit.errors import CalibrantError

WAITING = 64
"""Most requests that wait for the model; another one is refused."""


def launch(page: gr.Blocks, *, host: str = "127.0.0.1", port: int | None = None, share: bool = False) -> str:
    """Serves the page from now on, in threads of this process.

    Args:
        page: The page.
        host: Address to listen on; other machines reach the page only if this says so.
        port: Port to listen on; the first free one from 7860 if None.
        share: Make a public link through Gradio's servers.

    Returns:
        The page's address.

    Raises:
        CalibrantError: The port is taken, or the address is none of this machine.
    """
    page.queue(max_size=WAITING)
    try:
        _, local, public = page.launch(
            server_name=host,
            server_port=port,
            share=share,
            prevent_thread_lock=True,
            quiet=True,
            inbrowser=False,
            ssr_mode=False,
            run_history=False,
            footer_links=["api"],
            max_file_size=0,
            **look(),
        )
    except OSError as error:
        raise CalibrantError(
            f"port {port or '7860 and those after it'} of {host} is taken or not to be had; choose another "
            "--port or --host"
        ) from error
    return str(public or local)
