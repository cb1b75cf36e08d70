"""Makes data that teaches a model to say how sure it is, of an evaluation's graded answers.

python recipes/say.py EVALUATION FILE.jsonl [--confidence minimum] [--bins 10] [--answers false]
"""

import sys

from parsing import SaySettings, parse_say
from runs import run_recipe

from toolkit.evaluation.open_report import read_answers_frame
from toolkit.evaluation.said import said_rows, write_rows


def say(settings: SaySettings) -> str:
    """Writes an open-ended question for each answer: how probable it is that it is right.

    Args:
        settings: All settings.

    Returns:
        What the rows teach to say, and how often.

    Raises:
        CalibrantError: Any fault that the user can mend.
    """
    answers = read_answers_frame(settings.evaluation)
    made = said_rows(answers, settings.confidence, settings.bins, keep=settings.answers)
    write_rows(settings.output, made.rows)
    taught = ", ".join(f"{value:.2f} ({count})" for value, count in made.probabilities.items())
    return f"probabilities taught, and how many answers each: {taught}; {made.skipped} answers left out"


def main() -> None:
    """Reads the command line, and writes the file."""
    settings = parse_say()
    print(say(settings))
    print(f"rows: {settings.output}", file=sys.stderr)


if __name__ == "__main__":
    run_recipe(main)
