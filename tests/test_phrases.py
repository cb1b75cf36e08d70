"""Phrases found in texts, and their probabilities against the survey and a posterior computed elsewhere."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta

from toolkit.confidence.phrases import HUMAN, VARIANTS, find_phrase, fit_phrases, phrase_probability
from toolkit.errors import CalibrantError
from toolkit.questions.elicitation import PHRASES


def test_every_phrase_that_may_be_chosen_has_a_probability_and_they_fall_with_the_list():
    assert tuple(HUMAN) == PHRASES
    values = [phrase_probability(phrase) for phrase in PHRASES]
    assert values == sorted(values, reverse=True)
    assert all(0 < value < 1 for value in values)
    assert set(VARIANTS.values()) <= set(HUMAN) and not set(VARIANTS) & set(HUMAN)


@pytest.mark.parametrize("phrase", [*HUMAN, *VARIANTS])
@pytest.mark.parametrize("frame", ["{}", "Confidence: {}.", "Paris\n{}!", "I would say: “{}”"])
def test_each_phrase_is_found_as_it_stands(phrase, frame):
    meant = VARIANTS.get(phrase, phrase)
    for written in (
        phrase,
        phrase.upper(),
        phrase.title(),
        phrase.replace(" ", "-"),
        phrase.replace(" ", "\n"),
    ):
        assert find_phrase(frame.format(written)) == meant


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("It is highly likely that this is right.", "highly likely"),
        ("It is, very likely, Paris.", "highly likely"),
        ("Highly unlikely", "highly unlikely"),
        ("Probably not", "probably not"),
        ("Likely. Yes, likely!", "likely"),
        ("likely, almost certain", None),
        ("No, highly likely", "highly likely"),
        ("I do not know. Likely Paris.", "likely"),
        ("not certain but likely", "likely"),
        ("not likely", None),
        ("It isn't likely", None),
        ("It isn’t very likely", None),
        ("This is not a very good chance", None),
        ("not almost certain", None),
        ("hardly probable", None),
        ("likely not", None),
        ("less likely", None),
        ("How likely is it?", None),
        ("the most likely answer", None),
        ("extremely likely", None),
        ("unlikelyish, blikely, likelyhood", None),
        ("likelihood: high", None),
        ("certain", None),
        ("the chances are good", None),
        ("", None),
    ],
)
def test_what_a_text_says(text, phrase):
    assert find_phrase(text) == phrase


def test_the_whole_list_is_no_choice():
    assert find_phrase(", ".join(PHRASES)) is None
    assert find_phrase("\n".join(PHRASES)) is None


@pytest.mark.parametrize("strength", [0.5, 4.0, 30.0])
def test_fit_is_the_mean_of_the_posterior_by_integration(strength):
    rng = np.random.default_rng(0)
    phrases = [str(phrase) for phrase in rng.choice(["likely", "almost certain", "we doubt"], 40)]
    correct = rng.random(40) < 0.4
    fitted = fit_phrases(phrases, correct.tolist(), strength)
    for phrase in ("likely", "almost certain", "we doubt"):
        h = HUMAN[phrase]
        outcomes = [c for said, c in zip(phrases, correct, strict=True) if said == phrase]
        right, wrong = sum(outcomes), len(outcomes) - sum(outcomes)
        assert right and wrong
        # Prior times likelihood over a grid-free integral; the substitution p = q(u) keeps the edges tame.
        prior = beta(strength * h, strength * (1 - h))

        def weight(u, power, prior=prior, right=right, wrong=wrong):
            p = prior.ppf(u)
            return p ** (right + power) * (1 - p) ** wrong

        mean = quad(weight, 0, 1, args=(1,))[0] / quad(weight, 0, 1, args=(0,))[0]
        assert fitted[phrase] == pytest.approx(mean, rel=1e-3)
    unseen = set(HUMAN) - set(phrases)
    assert len(unseen) == 14 and all(fitted[phrase] == pytest.approx(HUMAN[phrase]) for phrase in unseen)


def test_fit_moves_from_people_to_the_data_as_the_prior_weakens():
    phrases, correct = ["likely"] * 10, [True] * 2 + [False] * 8
    assert fit_phrases(phrases, correct, 1e9)["likely"] == pytest.approx(0.7)
    assert fit_phrases(phrases, correct, 1e-9)["likely"] == pytest.approx(0.2)
    assert fit_phrases(phrases, correct, 10)["likely"] == pytest.approx(0.45)
    assert fit_phrases([], []) == pytest.approx(HUMAN)


def test_faults_have_one_line():
    for call in (
        lambda: fit_phrases(["likely"], []),
        lambda: fit_phrases(["sure"], [True]),
        lambda: fit_phrases(["likely"], [True], 0.0),
        lambda: fit_phrases(["likely"], [True], float("nan")),
        lambda: phrase_probability("Likely"),
    ):
        with pytest.raises(CalibrantError, match="; ") as fault:
            call()
        assert "\n" not in str(fault.value)
