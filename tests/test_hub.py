"""Questions from the Hub: its schemas, in small local files, read through the same loader."""

import json

import datasets
import pytest
from datasets import ClassLabel, Features, Value

from toolkit.errors import CalibrantError
from toolkit.questions.hub import HUB
from toolkit.questions.question import MultipleChoice, OpenEnded
from toolkit.questions.sources import load_questions, sources

SPLITS = ("train", "validation", "test")
TEXT, LONG = Value("string"), Value("int64")
STRINGS = datasets.List(TEXT)
LABELLED = {"text": STRINGS, "label": STRINGS}
TARGETS = {"choices": STRINGS, "labels": datasets.List(Value("int32"))}
TRIVIA_ANSWER = {
    "aliases": STRINGS,
    "normalized_aliases": STRINGS,
    "matched_wiki_entity_name": TEXT,
    "normalized_matched_wiki_entity_name": TEXT,
    "normalized_value": TEXT,
    "type": TEXT,
    "value": TEXT,
}


def labelled(identity, letters, key, text="question"):
    options = [f"option {letter}" for letter in letters]
    return {
        "id": identity,
        text: f"What is {identity}?",
        "choices": {"text": options, "label": list(letters)},
        "answerKey": key,
    }


def medmcqa(identity, cop):
    options = {"opa": "w", "opb": "x", "opc": "y", "opd": "z"}
    about = {"choice_type": "single", "exp": None, "subject_name": "Anatomy", "topic_name": None}
    return {"id": identity, "question": f"Which is {identity}?", "cop": cop, **options, **about}


def hellaswag(ind, label):
    return {
        "ind": ind,
        "activity_label": "Roof shingle removal",
        "ctx_a": f"Man {ind} is on a roof.",
        "ctx_b": "he",
        "ctx": f"Man {ind} is on a roof. he",
        "endings": ["rips", "sits", "falls", "sings"],
        "source_id": f"activitynet~{ind}",
        "split": "train",
        "split_type": "indomain",
        "label": label,
    }


def triviaqa(identity, value, aliases):
    answer: dict[str, object] = dict.fromkeys(TRIVIA_ANSWER, "")
    answer |= {"value": value, "aliases": aliases, "normalized_aliases": []}
    return {"question": f"Who is {identity}?", "question_id": identity, "answer": answer}


def popqa(number):
    return {
        "id": number,
        "subj": "George Rankin",
        "prop": "occupation",
        "obj": "politician" if number else None,  # as the reader of TSV leaves such as "None"
        "question": f"What is George Rankin {number}'s occupation?",
        "possible_answers": json.dumps(["politician", "political leader", "polit\u00edco"]),
        "s_pop": 142,
    }


def truthfulqa(number):
    one = {"choices": ["right", "wrong", "worse", "worst", "not"], "labels": [1, 0, 0, 0, 0]}
    two = {"choices": ["right", "also", "wrong"], "labels": [1, 1, 0]}
    return {"question": f"Is it {number}?", "mc1_targets": one, "mc2_targets": two}


def alpaca(number, text=""):
    return {"instruction": f"Name {number}.", "input": text, "output": f"{number}", "text": "..."}


# The schemas of the Hub, and a few rows as they stand there, by split of the Hub.
ON_THE_HUB = {
    "mmlu": (
        Features(
            question=TEXT,
            subject=TEXT,
            choices=STRINGS,
            answer=ClassLabel(names=["A", "B", "C", "D"]),
        ),
        {
            split: [
                {"question": f"In {split}?", "subject": "anatomy", "choices": list("wxyz"),
                 "answer": 2},
                {"question": f"In {split}?", "subject": "anatomy", "choices": list("wxyz"),
                 "answer": 2},  # repeated
                {"question": "Same?", "subject": "anatomy", "choices": list("wwyz"), "answer": 2},
            ]
            for split in ("auxiliary_train", "dev", "validation", "test")
        },
    ),
    "medmcqa": (
        Features(
            **{key: TEXT for key in ("id", "question", "opa", "opb", "opc", "opd")},
            cop=ClassLabel(names=["a", "b", "c", "d"]),
            **{key: TEXT for key in ("choice_type", "exp", "subject_name", "topic_name")},
        ),
        {
            "train": [medmcqa(f"t{i}", i % 4) for i in range(100)],
            "validation": [medmcqa("v", 3)],
            "test": [medmcqa("hidden", -1)],
        },
    ),
    "openbookqa": (
        Features(id=TEXT, question_stem=TEXT, choices=LABELLED, answerKey=TEXT),
        {split: [labelled(split, "ABCD", "B", "question_stem")] for split in SPLITS},
    ),
    "arc_easy": (
        Features(id=TEXT, question=TEXT, choices=LABELLED, answerKey=TEXT),
        {split: [labelled(f"{split}-letters", "ABC", "C"), labelled(f"{split}-digits", "1234", "2")]
         for split in SPLITS},
    ),
    "arc_challenge": (
        Features(id=TEXT, question=TEXT, choices=LABELLED, answerKey=TEXT),
        {split: [labelled(split, "ABCDE", "E"), labelled("odd", "ABCD", "5")] for split in SPLITS},
    ),
    "hellaswag": (
        Features(
            ind=Value("int32"),
            **{key: TEXT for key in ("activity_label", "ctx_a", "ctx_b", "ctx")},
            endings=STRINGS,
            **{key: TEXT for key in ("source_id", "split", "split_type", "label")},
        ),
        {
            "train": [hellaswag(i, str(i % 4)) for i in range(100)],
            "validation": [hellaswag(200, "3")],
            "test": [hellaswag(300, "")],
        },
    ),
    "piqa": (
        Features(goal=TEXT, sol1=TEXT, sol2=TEXT, label=ClassLabel(names=["0", "1"])),
        {
            "train": [
                {"goal": f"Open {i}.", "sol1": "Turn.", "sol2": "Pull.", "label": i % 2}
                for i in range(100)
            ],
            "validation": [{"goal": "Shut.", "sol1": "Turn.", "sol2": "Pull.", "label": 1}],
            "test": [{"goal": "Hidden.", "sol1": "Turn.", "sol2": "Pull.", "label": -1}],
        },
    ),
    "triviaqa": (
        Features(question=TEXT, question_id=TEXT, answer=TRIVIA_ANSWER),
        {
            "train": [triviaqa(f"t{i}", "Lewis", ["(Harry) Lewis", "Lewis"]) for i in range(100)],
            "validation": [triviaqa("v", "York", [])],
            "test": [triviaqa("hidden", "<unk>", [])],
        },
    ),
    "popqa": (
        Features(
            id=LONG,
            **{key: TEXT for key in ("subj", "prop", "obj", "question", "possible_answers")},
            s_pop=LONG,
        ),
        {"test": [popqa(i) for i in range(100)]},
    ),
    "truthfulqa": (
        Features(question=TEXT, mc1_targets=TARGETS, mc2_targets=TARGETS),
        {"validation": [truthfulqa(i) for i in range(100)]},
    ),
    "alpaca": (
        Features(instruction=TEXT, input=TEXT, output=TEXT, text=TEXT),
        {"train": [alpaca(i) for i in range(100)]
         + [alpaca("this", "A cat."), alpaca("none") | {"output": ""}]},
    ),
}  # fmt: skip
IDS = {
    "mmlu": ("cais/mmlu", "all", None),
    "medmcqa": ("openlifescienceai/medmcqa", None, None),
    "openbookqa": ("allenai/openbookqa", "main", None),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", None),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", None),
    "hellaswag": ("Rowan/hellaswag", None, None),
    "piqa": ("ybisk/piqa", None, "refs/convert/parquet"),
    "triviaqa": ("mandarjoshi/trivia_qa", "rc.nocontext", None),
    "popqa": ("akariasai/PopQA", None, None),
    "truthfulqa": ("truthfulqa/truthful_qa", "multiple_choice", None),
    "alpaca": ("tatsu-lab/alpaca", None, None),
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`datasets.load_dataset` reads parquet files with the Hub's schemas instead of the Hub."""
    real = datasets.load_dataset
    asked = []

    def load_dataset(repository, config=None, *, split, revision=None):
        asked.append((repository, config, revision))
        (name,) = (name for name, ids in IDS.items() if ids == (repository, config, revision))
        features, rows = ON_THE_HUB[name]
        path = tmp_path / f"{name}-{split}.parquet"
        datasets.Dataset.from_list(rows[split], features=features).to_parquet(path)
        cache = str(tmp_path / "cache")
        return real("parquet", data_files={split: str(path)}, split=split, cache_dir=cache)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_the_table_has_the_sets_that_are_documented():
    assert list(HUB) == list(IDS)
    assert {f"hub/{name}" for name in IDS} <= set(sources())


@pytest.mark.parametrize("name", IDS)
def test_every_split_loads_and_no_question_is_in_two(name, hub):
    texts = [{q.text for q in load_questions(f"hub/{name}", split)} for split in SPLITS]
    assert all(texts)
    distinct = len(set.union(*texts))
    assert distinct == sum(map(len, texts)) or name == "mmlu"
    assert "hidden" not in str(texts).lower()
    assert hub == [IDS[name]] * 3


def choices(name, split="test"):
    loaded = load_questions(f"hub/{name}", split)
    return [question for question in loaded if isinstance(question, MultipleChoice)]


def open_ended(name, split="test"):
    loaded = load_questions(f"hub/{name}", split)
    return [question for question in loaded if isinstance(question, OpenEnded)]


def test_multiple_choice_rows_become_the_questions_they_are(hub):
    mmlu = choices("mmlu", "train")[0]
    assert (mmlu.text, mmlu.choices) == ("In auxiliary_train?", tuple("wxyz"))
    assert (mmlu.answer, mmlu.subject) == (2, "anatomy")
    assert choices("medmcqa") == [MultipleChoice("v", "Which is v?", tuple("wxyz"), 3, "Anatomy")]
    four = tuple(f"option {letter}" for letter in "ABCD")
    assert choices("openbookqa") == [MultipleChoice("test", "What is test?", four, 1)]
    letters, digits = choices("arc_easy")
    assert (len(letters.choices), letters.answer) == (3, 2)
    assert (digits.choices[digits.answer], digits.answer) == ("option 2", 1)
    (five,) = choices("arc_challenge", "validation")  # the other row has no option with its key
    assert (len(five.choices), five.answer) == (5, 4)
    (swag,) = choices("hellaswag")
    assert (swag.text, swag.choices[swag.answer]) == ("Man 200 is on a roof. he", "sings")
    (piqa,) = choices("piqa")
    assert (piqa.text, piqa.choices, piqa.answer) == ("Shut.", ("Turn.", "Pull."), 1)


def test_open_ended_rows_become_the_questions_they_are(hub):
    assert open_ended("triviaqa") == [OpenEnded("v", "Who is v?", ("York",))]
    assert open_ended("triviaqa", "train")[0].answers == ("Lewis", "(Harry) Lewis")
    for question in open_ended("popqa"):
        assert question.answers == ("politician", "political leader", "polit\u00edco")
        assert question.subject == "occupation"
    tasks = {q.text: q.answers for split in SPLITS for q in open_ended("alpaca", split)}
    assert tasks["Name 3."] == ("3",)
    assert tasks["Name this.\n\nA cat."] == ("this",)
    assert len(tasks) == 101  # the row without an output is left out


def test_truthfulqa_does_not_keep_the_right_option_first(hub):
    questions = [q for split in SPLITS for q in choices("truthfulqa", split)]
    assert len(questions) == 100
    assert {q.choices[q.answer] for q in questions} == {"right"}
    counts = [sum(q.answer == place for q in questions) for place in range(5)]
    assert max(counts) < 40


def test_shares_of_one_split_have_their_sizes(hub):
    sizes = [len(load_questions("hub/popqa", split)) for split in SPLITS]
    assert sum(sizes) == 100
    assert 45 <= sizes[0] <= 75 and 3 <= sizes[1] <= 20 and 18 <= sizes[2] <= 45


def test_repeated_and_broken_rows_are_left_out(hub):
    assert len(load_questions("hub/mmlu", "test")) == 1
    assert load_questions("hub/mmlu", "test").sha256 == load_questions("hub/mmlu", "test").sha256


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'cais/mmlu'\non the Hub (LocalEntryNotFoundError)")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(CalibrantError) as error:
        load_questions("hub/mmlu", "test")
    assert str(error.value) == (
        "cannot load cais/mmlu from the Hub (Couldn't reach 'cais/mmlu'); "
        "check the network, or give the questions as a JSONL file"
    )


def test_offline_the_real_library_gives_one_line_too(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(CalibrantError, match=r"^cannot load cais/mmlu from the Hub \(.+\); check"):
        load_questions("hub/mmlu", "test")


def test_a_changed_schema_is_one_line(hub, monkeypatch):
    features = Features(prompt=TEXT)
    monkeypatch.setitem(ON_THE_HUB, "mmlu", (features, {"test": [{"prompt": "?"}]}))
    with pytest.raises(CalibrantError, match="cais/mmlu has no column 'question'; "):
        load_questions("hub/mmlu", "test")
