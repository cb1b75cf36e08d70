import json
import re
import time

import pytest

from toolkit.errors import CalibrantError
from toolkit.questions.question import MultipleChoice, OpenEnded, Preference
from toolkit.questions.sources import load_questions, sources

SPLITS = ("train", "validation", "test")

# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["worldfacts/alchemy", "worldfacts/cities/essay", "hub/none", "hub", "world", ""]
)
def test_an_unknown_source_is_answered_with_those_there_are(source):
    with pytest.raises(CalibrantError) as error:
        load_questions(source, "test")
    message = str(error.value)
    assert message.startswith(f"unknown source {source!r}; choose one of worldfacts, ")
    assert "worldfacts/chemistry" in message and "hub/mmlu" in message and "JSONL" in message
    assert "\n" not in message


def test_an_unknown_split_is_refused():
    with pytest.raises(CalibrantError) as error:
        load_questions("worldfacts", "dev")
    assert str(error.value) == "unknown split 'dev'; choose one of train, validation, test"


def test_worldfacts_are_all_domains_in_turn():
    everything = load_questions("worldfacts", "validation")
    parts = [
        question
        for source in sources()
        if re.fullmatch(r"worldfacts/\w+", source)
        for question in load_questions(source, "validation")
    ]
    assert list(everything) == parts
    assert all(isinstance(q, MultipleChoice) for q in everything)
    assert all(isinstance(q, OpenEnded) for q in load_questions("worldfacts/cities/open", "test"))


# --- JSONL --------------------------------------------------------------------------------------

CHOICE = {"question": "Is it so?", "choices": ["yes", "no"], "answer": 1}
OPEN = {"question": "Who?", "answers": ["I", "me"]}
PAIR = {"prompt": "Is it so?", "chosen": "It is.", "rejected": "no"}


@pytest.fixture
def write(tmp_path):
    def write(*lines, encoding="utf-8"):
        path = tmp_path / "questions.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_bytes("\n".join(texts).encode(encoding))
        return str(path)

    return write


def test_multiple_choice_lines(write):
    path = write(CHOICE | {"id": "a", "subject": "s", "further": 1}, CHOICE, CHOICE | {"id": 7})
    one, two, three = load_questions(path, "train")
    assert one == MultipleChoice("a", "Is it so?", ("yes", "no"), 1, "s")
    assert re.fullmatch("[0-9a-f]{16}", two.id)
    assert three.id == "7"


def test_open_ended_lines(write):
    (one,) = load_questions(write(OPEN), "test")
    assert one == OpenEnded(one.id, "Who?", ("I", "me"))


def test_preference_lines(write):
    path = write(PAIR | {"id": "a", "subject": "s", "further": 1}, PAIR, PAIR | {"rejected": "No!"})
    one, two, three = load_questions(path, "train")
    assert one == Preference("a", "Is it so?", "It is.", "no", "s")
    assert re.fullmatch("[0-9a-f]{16}", two.id) and two.id != three.id


def test_further_keys_make_no_question_a_preference(write):
    (one,) = load_questions(write(CHOICE | PAIR | {"id": "a"}), "test")
    assert one == MultipleChoice("a", "Is it so?", ("yes", "no"), 1)


def test_an_id_comes_from_the_content_alone(write):
    (alone,) = load_questions(write(OPEN), "test")
    later = load_questions(write(OPEN | {"question": "What?"}, OPEN | {"subject": "s"}), "test")
    assert later.questions[1].id == alone.id != later.questions[0].id


def test_byte_order_mark_blank_lines_and_line_ends_are_tolerated(write):
    path = write("", "  ", json.dumps(OPEN) + "\r", "", encoding="utf-8-sig")
    assert len(load_questions(path, "test")) == 1


def test_a_path_may_name_the_split(tmp_path):
    for split in SPLITS:
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(OPEN | {"id": split}))
    for split in SPLITS:
        (question,) = load_questions(str(tmp_path / "{split}.jsonl"), split)
        assert question.id == split


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON (Expecting property name"),
        ("[" * 100_000, "not JSON (maximum recursion depth exceeded"),
        ("[1]", 'not a JSON object; write {"question": …} on each line'),
        ({"choices": ["a", "b"], "answer": 0}, 'no "question"; give it as a string'),
        (CHOICE | {"question": 1}, 'no "question"; give it as a string'),
        (CHOICE | {"question": " "}, "no question text; give `question` a text"),
        ({"question": "?"}, 'neither "choices" nor "answers"; give one of them'),
        (CHOICE | OPEN, 'both "choices" and "answers"; keep one of them'),
        ({"question": "?", "choices": ["a", "b"]}, 'no "answer"; give the place of the right'),
        (CHOICE | {"answer": 2}, "answer 2 is not the place of an option; give a whole number"),
        (CHOICE | {"answer": -1}, "answer -1 is not the place of an option; give a whole number"),
        (CHOICE | {"answer": True}, "answer True is not the place of an option; give"),
        (CHOICE | {"answer": 1.0}, "answer 1.0 is not the place of an option; give"),
        (CHOICE | {"answer": "no"}, "answer 'no' is not the place of an option; give"),
        (CHOICE | {"answer": None}, "answer None is not the place of an option; give"),
        (CHOICE | {"choices": ["yes"], "answer": 0}, "1 option(s); give at least two"),
        (CHOICE | {"choices": ["no", "no"]}, "the same option twice; keep one of each"),
        (CHOICE | {"choices": ["no", ""]}, "an empty option; give each option a text"),
        (CHOICE | {"choices": "yes"}, '"choices" is not a list of strings; write it as one'),
        (CHOICE | {"choices": ["a", 1]}, '"choices" is not a list of strings; write it as one'),
        (OPEN | {"answers": []}, "no accepted answer; give at least one"),
        (OPEN | {"answers": [""]}, "an empty answer; give each answer a text"),
        (OPEN | {"id": 1.5}, '"id" is not a string; write it as one or leave it out'),
        (OPEN | {"id": ""}, '"id" is not a string; write it as one or leave it out'),
        (OPEN | {"subject": 1}, '"subject" is not a string; write it as one'),
        ({"chosen": "a", "rejected": "b"}, 'no "prompt"; give it as a string'),
        ({"question": "?", "chosen": "a", "rejected": "b"}, 'no "prompt"; give it as a string'),
        ({"prompt": "?"}, 'no "chosen"; give it as a string'),
        (PAIR | {"rejected": None}, 'no "rejected"; give it as a string'),
        (PAIR | {"chosen": [{"role": "assistant", "content": "a"}]}, 'no "chosen"; give it as a string'),
        (PAIR | {"prompt": ""}, "no prompt text; give `prompt` a text"),
        (PAIR | {"chosen": " "}, "an empty answer; give `chosen` and `rejected` a text"),
        (PAIR | {"chosen": "no"}, "the same answer chosen and rejected; give two different ones"),
        (PAIR | {"subject": 1}, '"subject" is not a string; write it as one'),
        (PAIR | {"id": ""}, '"id" is not a string; write it as one or leave it out'),
        ({"prompt": "?", "choices": ["a", "b"]}, 'no "question"; give it as a string'),
        ({"question": "\ud800?", "answers": ["a"]}, "half of a surrogate pair; write whole"),
    ],
)
def test_a_faulty_line_is_named_with_its_mend(write, line, fault):
    path = write(OPEN | {"id": "first"}, "", line)
    with pytest.raises(CalibrantError) as error:
        load_questions(path, "test")
    assert str(error.value).startswith(f"{path}:3: {fault}")
    assert "; " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ((OPEN, OPEN), r":2: a repeat of line 1 \(id '[0-9a-f]{16}'\); remove one"),
        ((OPEN, "", OPEN | {"id": "a"}, CHOICE | {"id": "a"}), r":4: .* in one file; keep one"),
        (
            (OPEN | {"id": "a"}, OPEN | {"id": "a"}),
            r":2: a repeat of line 1 \(id 'a'\); remove one",
        ),
        ((CHOICE, OPEN), r":2: multiple choice and open-ended questions in one file; keep one"),
        ((PAIR, OPEN), r":2: preference pairs and open-ended questions in one file; keep one"),
        ((CHOICE, PAIR), r":2: multiple choice and preference pairs in one file; keep one"),
        ((PAIR, PAIR), r":2: a repeat of line 1 \(id '[0-9a-f]{16}'\); remove one"),
        (("",), r" holds no questions; write one JSON object a line"),
        (("", " "), r" holds no questions; write one JSON object a line"),
    ],
)
def test_faults_of_a_whole_file(write, lines, fault):
    with pytest.raises(CalibrantError, match=fault) as error:
        load_questions(write(*lines), "test")
    assert "\n" not in str(error.value)


def test_what_is_not_a_readable_file(write, tmp_path):
    with pytest.raises(CalibrantError, match=r"no such file: .*none\.jsonl; check the path"):
        load_questions(str(tmp_path / "none.jsonl"), "test")
    with pytest.raises(CalibrantError, match="is a folder; name a JSONL file in it"):
        load_questions(str(tmp_path), "test")
    with pytest.raises(CalibrantError, match=r":1: not UTF-8; save the file as UTF-8"):
        load_questions(write(OPEN, encoding="utf-16"), "test")
    with pytest.raises(CalibrantError, match=r":2: not UTF-8; save the file as UTF-8"):
        path = write(OPEN, json.dumps(OPEN | {"question": "Qui\u00e9n?"}, ensure_ascii=False),
                     encoding="latin-1")  # fmt: skip
        load_questions(path, "test")


def test_a_large_file_is_read_fast(tmp_path):
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for i in range(100_000):
            file.write(json.dumps(CHOICE | {"question": f"Is it {i}?"}) + "\n")
    start = time.process_time()
    assert len(load_questions(str(path), "train")) == 100_000
    assert time.process_time() - start < 6  # about 1 s where nothing else runs
