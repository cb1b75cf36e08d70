"""The explorer's command line; `python -m app --help` says what it takes."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from toolkit.errors import CalibrantError


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m app", description="Opens the confidence explorer.")
    made.add_argument(
        "--model", default="bundled", help="base model: a Hub id, a folder, or bundled (default)"
    )
    made.add_argument(
        "--adapter",
        action="append",
        metavar="ADAPTER",
        help="an adapter of that model: a folder or a Hub id; may be given several times "
        "(default with the bundled model: every folder in adapters/)",
    )
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    made.add_argument("--port", type=int, help="port to listen on (default: the first free one from 7860)")
    made.add_argument("--share", action="store_true", help="make a public link through Gradio's servers")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Loads the models, builds the page and serves it until it is interrupted.

    Args:
        arguments: What stands behind the command; the process's own if None.

    Returns:
        The exit status: 0, or 2 for a fault that is then named on stderr in one line.
    """
    chosen = parser().parse_args(arguments)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    disable_progress_bar()  # of the libraries' own inner workings
    try:
        serve(chosen)
    except CalibrantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    return 0


def serve(chosen: argparse.Namespace) -> None:
    """Serves what a command line names.

    Raises:
        CalibrantError: A model or an adapter does not load, the port is taken, or Gradio is not installed.
    """
    try:
        from app.pages.explorer import build
        from app.serving import launch
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("gradio"):
            raise
        raise CalibrantError("the explorer needs Gradio; run: pip install 'calibrant[app]'") from error
    from app.models import find_adapters, load_models

    adapters = chosen.adapter
    if adapters is None:
        adapters = find_adapters(Path("adapters")) if chosen.model == "bundled" else []
    print(f"loading {chosen.model} with {len(adapters)} adapter(s) ...", file=sys.stderr)
    page = build(load_models(chosen.model, adapters))
    address = launch(page, host=chosen.host, port=chosen.port, share=chosen.share)
    print(f"the explorer is at {address} (Ctrl-C ends it)", flush=True)
    page.block_thread()


if __name__ == "__main__":
    sys.exit(main())
