"""How far each grader agrees with a reader, on answers of real models.

python recipes/benchmarks/graders.py --output_dir runs/graders
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from measure import Parser, Result, markdown

from toolkit.errors import CalibrantError
from toolkit.evaluation.grading import GRADERS
from toolkit.questions.question import OpenEnded

SAMPLE = Path(__file__).parents[2] / "tests" / "data" / "graded.jsonl"
"""Answers with a reader's verdict; one JSON object a line: question, accepted, answer, right."""


def benchmark(path: Path) -> Result:
    """Grades every answer by every grader.

    Args:
        path: A file like `SAMPLE`.

    Returns:
        For each grader the share of answers on which it agrees with the reader, Cohen's kappa (None where all
        verdicts are the same), and the answers that it alone takes or refuses.

    Raises:
        CalibrantError: The file cannot be read, or has no answers.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        questions = [OpenEnded(str(i), row["question"], tuple(row["accepted"])) for i, row in enumerate(rows)]
        right = np.array([row["right"] for row in rows], dtype=bool)
        answers = [row["answer"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CalibrantError(f"{path} is no file of graded answers ({error}); name another") from error
    if not rows:
        raise CalibrantError(f"{path} has no answers; name another")
    graders = {}
    for name, grade in GRADERS.items():
        found = np.array(grade(questions, answers), dtype=bool)
        graders[name] = {
            "agreement": float((found == right).mean()),
            "kappa": kappa(found, right),
            "wrongly_right": [answers[i] for i in np.flatnonzero(found & ~right)],
            "wrongly_wrong": [answers[i] for i in np.flatnonzero(~found & right)],
        }
    return {"answers": len(rows), "right": int(right.sum()), "graders": graders}


def kappa(a: np.ndarray, b: np.ndarray) -> float | None:
    """Returns Cohen's kappa of two arrays of verdicts, or None where chance alone would make them agree."""
    chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    return None if chance == 1 else float(((a == b).mean() - chance) / (1 - chance))


def table(result: Result) -> str:
    """Returns the result as a Markdown table."""
    rows = [
        (
            name,
            f"{one['agreement']:.3f}",
            "-" if one["kappa"] is None else f"{one['kappa']:.2f}",
            len(one["wrongly_right"]),
            len(one["wrongly_wrong"]),
        )
        for name, one in result["graders"].items()
    ]
    head = ("grader", "agreement", "kappa", "wrongly right", "wrongly wrong")
    note = f"{result['answers']} answers, of which a reader found {result['right']} right."
    return f"{markdown(rows, head)}\n\n{note}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line, grades, prints the table, and writes it where a folder is given."""
    parser = Parser("graders", "Compares graders with a reader's verdicts.")
    parser.add_argument("--sample", type=Path, default=SAMPLE, help="graded answers (default: ours)")
    parser.run(arguments, lambda given: benchmark(given.sample), table)


if __name__ == "__main__":
    main()
