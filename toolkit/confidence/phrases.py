"""Phrases such as "highly likely", and the probabilities that they stand for.

`HUMAN` has the medians of what 123 people took 17 phrases for, computed from the raw answers to the survey
"Perception of Probability Words" by Wade Fagen-Ulmschneider, University of Illinois, in the repository
wadefagen/datasets on GitHub (Perception-of-Probability-Words/survey-results.csv). arXiv 2305.14975 maps
phrases by the same survey. `fit_phrases` replaces them by how often a model is right when it says so.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from toolkit.errors import CalibrantError

HUMAN: dict[str, float] = {
    "almost certain": 0.95,
    "highly likely": 0.9,
    "very good chance": 0.8,
    "we believe": 0.75,
    "probably": 0.7,
    "probable": 0.7,
    "likely": 0.7,
    "better than even": 0.6,
    "about even": 0.5,
    "probably not": 0.25,
    "we doubt": 0.2,
    "unlikely": 0.2,
    "little chance": 0.1,
    "chances are slight": 0.1,
    "improbable": 0.1,
    "highly unlikely": 0.05,
    "almost no chance": 0.02,
}
"""Probability of each phrase to people: the survey's medians."""

VARIANTS: dict[str, str] = {
    "almost certainly": "almost certain",
    "very likely": "highly likely",
    "highly probable": "highly likely",
    "very probable": "highly likely",
    "i believe": "we believe",
    "i doubt": "we doubt",
    "slight chance": "chances are slight",
    "very unlikely": "highly unlikely",
    "highly improbable": "highly unlikely",
    "very improbable": "highly unlikely",
}
"""Other ways to say some of them.

"Probable" and "likely" mean the same with the same word before them (Reagan, Mosteller and Youtz, 1989).
"""

_PHRASE = "|".join(
    re.escape(phrase).replace(r"\ ", r"[\s-]+") for phrase in sorted(HUMAN | VARIANTS, key=len, reverse=True)
)
_MENTION = re.compile(
    rf"(?P<other>\b(?:(?:not|never|no|nor|hardly|cannot|\w+n't)(?:\s+(?!but\b)\w+){{0,2}}"
    rf"|less|least|more|most|extremely|equally|as|how)\s+)?\b(?P<phrase>{_PHRASE})\b(?P<after>\s+not\b)?",
    re.IGNORECASE,
)


def find_phrase(text: str) -> str | None:
    """Returns the phrase that a text says, or None where it says none or several different ones.

    Phrases are whole words in any case, the longest at each place: "highly likely" does not say "likely".
    One that is negated ("not likely", "isn't very likely", "likely not") or compared ("less likely") says
    something else, and counts as none. A variant is returned as the phrase that it varies.
    """
    plain = unicodedata.normalize("NFKC", text).replace("’", "'")
    said = {
        " ".join(re.split(r"[\s-]+", mention["phrase"].lower()))
        for mention in _MENTION.finditer(plain)
        if not mention["other"] and not mention["after"]
    }
    phrases = {VARIANTS.get(phrase, phrase) for phrase in said}
    return phrases.pop() if len(phrases) == 1 else None


def phrase_probability(phrase: str) -> float:
    """Returns what people take a phrase for, a probability.

    Raises:
        CalibrantError: It is none of the phrases in `HUMAN`.
    """
    if phrase not in HUMAN:
        raise CalibrantError(f"no probability is known for {phrase!r}; use one of {', '.join(HUMAN)}")
    return HUMAN[phrase]


def fit_phrases(
    phrases: Sequence[str], correct: Sequence[bool], prior_strength: float = 10.0
) -> dict[str, float]:
    """Fits the probability of each phrase to how often answers with it are right, on validation data.

    It is the mean of the posterior under the prior Beta(s·h, s·(1 - h)), where h is the phrase's probability
    to people and s the strength: (s·h + right)/(s + said). A phrase that is never said keeps h.

    Args:
        phrases: What was said of N answers, each one of `HUMAN`.
        correct: Whether each answer is right.
        prior_strength: s, the number of answers that the prior counts for, above 0.

    Raises:
        CalibrantError: A phrase is unknown, there is not one for each answer, or the strength is not above 0.
    """
    if len(phrases) != len(correct):
        raise CalibrantError(f"{len(phrases)} phrases for {len(correct)} answers; give one for each")
    if not prior_strength > 0:
        raise CalibrantError(f"a prior of strength {prior_strength}; give a number above 0")
    for phrase in phrases:
        phrase_probability(phrase)
    said = Counter(phrases)
    right = Counter(phrase for phrase, is_right in zip(phrases, correct, strict=True) if is_right)
    return {
        phrase: (prior_strength * human + right[phrase]) / (prior_strength + said[phrase])
        for phrase, human in HUMAN.items()
    }
