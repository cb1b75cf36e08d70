"""One loader for every source of questions: worldfacts, the Hub, and local files."""

from pathlib import Path

from toolkit.errors import CalibrantError
from toolkit.questions.hub import HUB, load_hub
from toolkit.questions.jsonl import read_jsonl
from toolkit.questions.question import QuestionSet
from toolkit.questions.worldfacts import domains, worldfacts

SPLITS = ("train", "validation", "test")


def sources() -> tuple[str, ...]:
    """The names that `load_questions` knows; it also takes the path of a JSONL file.

    Returns:
        Every source, those of `worldfacts` first.
    """
    facts = [f"worldfacts/{domain}" for domain in domains()]
    return ("worldfacts", *facts, *(f"{fact}/open" for fact in facts), *(f"hub/{n}" for n in HUB))


def load_questions(source: str, split: str) -> QuestionSet:
    """Load the questions of a source.

    Args:
        source: `worldfacts` (multiple choice, all domains), `worldfacts/DOMAIN`,
            `worldfacts/DOMAIN/open`, `hub/NAME`, or the path of a JSONL file. In a path,
            `{split}` stands for the split; a path without it is the same file for each split.
        split: "train", "validation" or "test".

    Returns:
        The questions, in an order that is always the same.

    Raises:
        CalibrantError: If the source is unknown, cannot be read or holds no questions.
    """
    if split not in SPLITS:
        raise CalibrantError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    kind, _, name = source.partition("/")
    if kind == "worldfacts":
        domain, _, form = name.partition("/")
        if source not in sources():
            _refuse(source)
        chosen = [domain] if domain else domains()
        form = form or "choice"
        questions = tuple(q for chosen_one in chosen for q in worldfacts(chosen_one, split, form))
    elif kind == "hub":
        if name not in HUB:
            _refuse(source)
        questions = tuple(load_hub(name, split))
    else:
        path = Path(source.replace("{split}", split))
        if not source or not path.exists() and path.suffix not in (".jsonl", ".json"):
            _refuse(source)
        questions = tuple(read_jsonl(path))
    if not questions:
        raise CalibrantError(f"{source} has no {split} questions; choose another source or split")
    return QuestionSet(source, split, questions)


def _refuse(source: str) -> None:
    known = ", ".join(name for name in sources() if not name.endswith("/open"))
    raise CalibrantError(
        f"unknown source {source!r}; choose one of {known}, a worldfacts domain with /open added, "
        "or the path of a JSONL file"
    )
