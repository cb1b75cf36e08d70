"""Checks a finished adapter, writes its card, and pushes it to the Hugging Face Hub in one commit.

python recipes/publish.py ADAPTER [REPO] [--private] [--dry_run]
python recipes/publish.py ADAPTER --merged FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path

from parsing import PublishSettings, parse_publish
from runs import run_recipe

from toolkit.errors import CalibrantError
from toolkit.evaluation.files import replacing
from toolkit.models.adapters import adapter_folder, load_adapter
from toolkit.models.adjustment import load_adjustment
from toolkit.models.base import default_device, load_model
from toolkit.models.merging import save_merged
from toolkit.publishing.card import card_text
from toolkit.publishing.checks import ALLOWED, CARD, check_folder, read_mapping
from toolkit.publishing.hub import base_licence, check_repo, open_repo, push
from toolkit.publishing.subject import Subject


def publish(settings: PublishSettings) -> str:
    """Checks an adapter folder and pushes it with a new card.

    The folder gets the card when the push is done; until then nothing in it changes.

    Args:
        settings: All settings.

    Returns:
        The commit's address, or of a dry run what would be done.

    Raises:
        CalibrantError: The folder is not fit to be published, or the push failed.
    """
    folder = Path(settings.adapter)
    repo = settings.repo or folder.resolve().name
    check_repo(repo)
    subject, warnings = check_folder(folder, repo)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    card = card_of(subject)
    files = sorted(path for path in folder.iterdir() if path.name != CARD)
    if settings.dry_run:
        return preview(subject, card, files, private=settings.private)
    repo = open_repo(repo, private=settings.private)
    licence = subject.licence or base_licence(subject.base)
    card = card_of(replace(subject, name=repo, licence=licence))
    message = f"{subject.report['method']} adapter for {subject.base}"
    address = push(repo, files, {CARD: card}, known=ALLOWED, message=message)
    with replacing(folder / CARD) as partial:
        partial.write_text(card, encoding="utf-8")
    return address


def card_of(subject: Subject) -> str:
    """Returns the card; a report that lacks what it needs is a fault like any other."""
    try:
        return card_text(subject)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CalibrantError(
            f"report.json is not what calibrate.py writes ({type(error).__name__}: {error}); train again"
        ) from error


def preview(subject: Subject, card: str, files: list[Path], *, private: bool) -> str:
    """Returns the card, the files with their sizes, and what a push would do with them."""
    sizes = {path.name: path.stat().st_size for path in files} | {CARD: len(card.encode())}
    rows = [f"{size:>12,}  {name}" for name, size in sorted(sizes.items())]
    repo = subject.name if "/" in subject.name else f"{subject.name}, in the account of your token"
    unknown = "" if subject.licence else "\nThe Hub would be asked for the base's licence."
    return (
        f"{card}\n{'-' * 72}\n"
        f"{'A private' if private else 'A public'} repository, if there is none yet: {repo}\n"
        f"In one commit, {sum(sizes.values()):,} bytes:\n" + "\n".join(rows) + unknown + "\n"
        "This was a dry run: nothing was sent or written."
    )


def merge(settings: PublishSettings) -> str:
    """Writes base, adapter and α as one model.

    Args:
        settings: All settings, with `merged`.

    Returns:
        What was written, and how far it is from the adapter.

    Raises:
        CalibrantError: The base or the adapter cannot be loaded or merged, or the folder written.
    """
    assert settings.merged is not None
    if settings.repo or settings.private or settings.dry_run:
        raise CalibrantError("--merged pushes nothing; leave out REPO, --private and --dry_run")
    adapter = adapter_folder(settings.adapter)
    config = adapter / "config.yaml"
    found = read_mapping(config).get("model") if config.is_file() else None
    trained = found if isinstance(found, dict) else {}
    name, revision = settings.model, None
    if name is None:
        name, revision = trained.get("name"), trained.get("revision")
    if not isinstance(name, str):
        raise CalibrantError(f"{settings.adapter} does not say what its base is; give it as --model")
    if trained.get("quantization", "none") != "none":
        print(
            "warning: the adapter was trained over a 4-bit base and is merged into the full one: the figures "
            "of its report need not hold; evaluate the merged model",
            file=sys.stderr,
        )
    base, tokenizer = load_model(name, dtype=settings.dtype, device=default_device(), revision=revision)
    adjustment = load_adjustment(adapter)
    error = save_merged(load_adapter(base, adapter), tokenizer, Path(settings.merged), adjustment)
    built = "" if adjustment is None else ", with α built in"
    if (
        adjustment is not None
        and load_adjustment(adapter, "tokens") is None
        and adjustment.delta.numel() == 1
    ):
        at = adjustment.delta.item()
        built += f" (learnt on options: draw text at temperature {at:.3f}, as the adapter's)"
    near = f"its log-probabilities are within {error:.1g} nats of the adapter's"
    return f"{settings.merged}: one model{built}; {near}"


def main() -> None:
    """Reads the command line, and pushes, previews or merges."""
    settings = parse_publish()
    print(publish(settings) if settings.merged is None else merge(settings))


if __name__ == "__main__":
    run_recipe(main)
