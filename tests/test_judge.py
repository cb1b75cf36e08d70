"""A model as a judge, and agreement of graders: tests of `toolkit/evaluation/judge.py`."""

import json
import logging
import math
import random
import socket
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from conftest import tiny_tokenizer
from sklearn.metrics import cohen_kappa_score, confusion_matrix
from transformers import LlamaForCausalLM

from toolkit.errors import CalibrantError
from toolkit.evaluation import judge as judge_module
from toolkit.evaluation.judge import (
    SHOWN_ANSWERS,
    agreement,
    local_judge,
    server_judge,
    yes_or_no,
)
from toolkit.models.adjustment import Adjustment
from toolkit.questions.question import OpenEnded

FRANCE = OpenEnded("france", "What is the capital of France?", ("Paris", "Lutetia"))
CHAD = OpenEnded("chad", "What is the capital of Chad?", ("N'Djamena",))
KEY = "sk-very/secret+key"


def test_what_a_judge_is_shown():
    lines = yes_or_no(FRANCE, " It is\n\nParis. ").text.splitlines()
    assert lines[:3] == [
        "What is the capital of France?",
        "Accepted answers: Paris; Lutetia",
        "Given answer: It is Paris.",
    ]
    many = OpenEnded("q", "Which?", tuple(f"name{i}" for i in range(50)))
    text = yes_or_no(many, "x" * 10**6).text
    assert len(text) < 2000 and f"name{SHOWN_ANSWERS - 1}" in text and f"name{SHOWN_ANSWERS}" not in text


def test_local_judge_is_yes_against_no_in_a_plain_pass(bundled):
    model, tokenizer = bundled
    questions, answers = (
        [FRANCE] * 4 + [CHAD] * 2,
        ["Paris", "Rome", "No idea.", "Lutetia", "Banana", "N'Djamena"],
    )
    (yes,), (no,) = (tokenizer(word)["input_ids"] for word in (" yes", " no"))
    leads = []
    for question, answer in zip(questions, answers, strict=True):
        prompt = f"Question: {yes_or_no(question, answer).text}\nAnswer:"
        with torch.no_grad():
            logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
        leads.append((logits[yes] - logits[no]).item())
    middle = sum(sorted(leads)[2:4]) / 2
    assert sorted(leads)[3] - sorted(leads)[2] > 1e-3
    shift = torch.zeros(model.config.vocab_size)
    for by in (0, middle):  # against a "no" that is more probable by the middle lead, half of them are right
        shift[no] = by
        adjustment = Adjustment(torch.ones_like(shift), shift)
        judge = local_judge(
            model, tokenizer, style="plain", max_length=512, batch_size=4, adjustment=adjustment
        )
        assert judge(questions, answers) == [lead > by for lead in leads]


def test_local_judge_asks_once_and_not_about_empty_answers(tiny_folder, monkeypatch):
    model, tokenizer = LlamaForCausalLM.from_pretrained(tiny_folder).eval(), tiny_tokenizer()
    asked = []
    encode = judge_module.encode_questions

    def spy(questions, *args, **keys):
        asked.extend(questions)
        return encode(questions, *args, **keys)

    monkeypatch.setattr(judge_module, "encode_questions", spy)
    judge = local_judge(model, tokenizer, style="chat", max_length=512)
    assert judge([FRANCE, CHAD], ["", " \n"]) == [False, False] and judge([], []) == [] and not asked
    grades = judge([FRANCE, FRANCE, CHAD, FRANCE], ["Paris", " Paris\n", "Paris", ""])
    assert len(asked) == 2 and grades[0] == grades[1] and grades[3] is False
    assert [type(grade) for grade in grades] == [bool] * 4


def test_local_judge_within_its_context(tiny_folder):
    judge = local_judge(
        LlamaForCausalLM.from_pretrained(tiny_folder).eval(), tiny_tokenizer(), style="chat", max_length=64
    )
    with pytest.raises(CalibrantError, match="the model's context holds 64"):
        judge([FRANCE], ["Paris"])


class Judge(BaseHTTPRequestHandler):
    """Says yes to Paris; the server's `faults` come first, one a request, and `seen` has what was asked."""

    protocol_version = "HTTP/1.1"
    server: "JudgeServer"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][0]["content"]
        with self.server.lock:
            self.server.seen.append((self.path, dict(self.headers), body))
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault is not None:
            fault(self)
        else:
            self.say(200, reply("yes" if "Given answer: Paris" in text else "No."))

    def say(self, status, content, **headers):
        raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(raw))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args):
        pass


class JudgeServer(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Judge)
        self.lock = threading.Lock()
        self.faults: list[Any] = []
        self.seen: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


def reply(content):
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


def status(number, content="busy", **headers):
    return lambda handler: handler.say(number, content, **headers)


def cut(handler):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def cut_in_the_middle(handler):
    handler.say(200, "{", Content_Length="1000")
    cut(handler)


def silence(handler):
    time.sleep(1)
    handler.close_connection = True


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = JudgeServer()
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def judge_at(server, **keys):
    return server_judge(server.url, "judge-1", **{"wait": 0.01, "timeout": 0.3, "at_once": 1} | keys)


@pytest.mark.parametrize("at_once", [1, 8])
def test_server_judge_grades_in_order_and_asks_once(server, at_once):
    names = ["Paris", "Rome", "", "Paris", "Lima", "Paris!", *map(str, range(30))]
    grades = judge_at(server, at_once=at_once)([FRANCE] * len(names), names)
    assert grades == [name.startswith("Paris") for name in names]
    assert len(server.seen) == len(set(names)) - 1
    path, headers, body = server.seen[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "judge-1" and body["temperature"] == 0
    asked = {body["messages"][0]["content"] for _, _, body in server.seen}
    assert asked == {yes_or_no(FRANCE, name).text for name in names if name}
    assert judge_at(server)([], []) == []


def test_no_key_is_sent_where_there_is_none(server, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "other")
    judge_at(server, api_key_variable="OTHER_KEY")([FRANCE], ["Paris"])
    monkeypatch.delenv("OPENAI_API_KEY")
    judge_at(server)([FRANCE], ["Paris"])
    assert [headers.get("Authorization") for _, headers, _ in server.seen] == ["Bearer other", None]


@pytest.mark.parametrize(
    "fault", [status(429), status(500), status(503), status(408), cut, cut_in_the_middle, silence]
)
def test_faults_that_pass(server, fault):
    server.faults += [fault, fault]
    assert judge_at(server, retries=2)([FRANCE, FRANCE], ["Paris", "Rome"]) == [True, False]
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (status(429), "replies with status 429"),
        (status(502, "<html>"), "replies with status 502"),
        (cut, "cuts the connection"),
        (silence, "is silent for more than 0.3 s"),
    ],
)
def test_faults_that_stay(server, fault, named):
    server.faults += [fault] * 9
    message = fault_of(server, retries=2)
    assert f"{named}, 3 times in a row" in message and len(server.seen) == 3


def test_waits_double_and_the_server_may_say_how_long(server, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(judge_module.time, "sleep", waits.append)
    server.faults += [status(500)] * 4
    assert judge_at(server, retries=4, wait=20)([FRANCE], ["Paris"]) == [True]
    assert waits == [20, 40, 60, 60]
    waits.clear()
    retry = [{"Retry_After": value} for value in ("7", "9999", "soon", "-1")]
    server.faults += [status(429, **headers) for headers in retry]
    assert judge_at(server, retries=4, wait=1)([FRANCE], ["Paris"]) == [True]
    assert waits == [7, 60, 4, 8]


def fault_of(server, **keys):
    """The one line of the error that a server leads to, which is checked to hold no key."""
    with pytest.raises(CalibrantError) as caught:
        judge_at(server, **keys)([FRANCE], ["Paris"])
    message = str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown and "very" not in message and "\n" not in message and "; " in message
    return message


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (status(401, f"wrong key {KEY}"), "status 401"),
        (status(403), "OPENAI_API_KEY"),
        (status(404, "{}"), "'judge-1'"),
        (status(400, {"error": {"message": f"no temperature\nwith {KEY}"}}), "400: no temperature with ..."),
        (status(422, f"key {KEY}"), "422: key ..."),
        (status(400, ""), "no reason given"),
        (status(302, "", Location="http://127.0.0.1:9/"), "status 302"),
        (status(200, "<html>"), "another form"),
        (status(200, ""), "another form"),
        (status(200, {}), "another form"),
        (status(200, []), "another form"),
        (status(200, {"choices": []}), "another form"),
        (status(200, {"choices": [{"message": {}}]}), "another form"),
        (status(200, reply(7)), "another form"),
        (status(200, reply(["yes"])), "another form"),
    ],
)
def test_faults_that_do_not_pass_are_told_at_once(server, fault, named):
    server.faults += [fault]
    message = fault_of(server)
    assert named in message and len(server.seen) == 1


def test_the_first_fault_ends_the_grading(server):
    server.faults += [status(401)] * 500
    with pytest.raises(CalibrantError, match="401"):
        judge_at(server, at_once=4)([FRANCE] * 500, [str(i) for i in range(500)])
    assert len(server.seen) < 100


def test_nobody_is_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://me:secret@127.0.0.1:{free.getsockname()[1]}/v1?token=secret"
    with pytest.raises(CalibrantError) as caught:
        server_judge(url, "judge-1")([FRANCE], ["Paris"])
    message = str(caught.value)
    assert "cannot be reached" in message and "refused" in message and "secret" not in message


@pytest.mark.parametrize("url", ["", "nonsense", "127.0.0.1:8000", "ftp://x/v1", "http://", "http://[::1"])
def test_addresses_that_are_none(url):
    with pytest.raises(CalibrantError, match="no URL"):
        server_judge(url, "judge-1")


def test_parameters_of_the_address_stay(server):
    server.url += "/?version=1"
    assert judge_at(server)([FRANCE], ["Paris"]) == [True]
    assert server.seen[0][0] == "/v1/chat/completions?version=1"


@pytest.mark.parametrize("key", ["sk-é", "sk-a\nb"])
def test_keys_that_are_none(server, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(CalibrantError, match="OPENAI_API_KEY") as caught:
        judge_at(server)([FRANCE], ["Paris"])
    assert "sk-" not in str(caught.value) and not server.seen


def test_replies_of_many_kinds(server, caplog):
    said = {
        "yes": True, "Yes.": True, "**YES**, it does": True, "Answer: yes": True, "yes\nno": True,
        "<think>no, hm, no</think>\n\nYes": True, "no": False, "No, yes": False, "Yesterday": None,
        "": None, "I cannot say": None, "もちろん": None,
    }  # fmt: skip
    server.faults += [status(200, reply(content)) for content in [*said, None]]
    with caplog.at_level(logging.WARNING):
        grades = judge_at(server)([FRANCE] * 13, [str(i) for i in range(13)])
    assert grades == [verdict is True for verdict in [*said.values(), None]]
    assert [record.getMessage() for record in caplog.records] == [
        "5 of 13 replies are neither yes nor no and count as no"
    ]
    caplog.clear()
    judge_at(server)([FRANCE], ["Paris"])
    assert not caplog.records


def test_agreement_is_that_of_scikit_learn():
    draw = random.Random(0)
    for _ in range(50):
        n = draw.randint(9, 40)
        reference, *graded = ([draw.random() < 0.6 for _ in range(n)] for _ in range(3))
        found = agreement({"one": graded[0], "two": graded[1]}, reference)
        assert list(found) == ["one", "two"]
        for grades, own in zip(graded, found.values(), strict=True):
            (right, false_positives), (false_negatives, both) = confusion_matrix(
                reference, grades, labels=[False, True]
            )
            assert (own.false_positives, own.false_negatives) == (false_positives, false_negatives)
            assert own.share == pytest.approx((right + both) / n)
            kappa = cohen_kappa_score(reference, grades, labels=[False, True])
            assert own.kappa == pytest.approx(kappa)


def test_agreement_where_there_is_nothing_to_agree_on():
    found = agreement({"same": [True] * 3, "other": [False] * 3}, [True] * 3)
    assert found["same"].share == 1 and math.isnan(found["same"].kappa)
    assert found["other"].share == found["other"].kappa == 0 and found["other"].false_negatives == 3
    with pytest.raises(CalibrantError, match="no grades"):
        agreement({"one": []}, [])
    with pytest.raises(CalibrantError, match="2 grades by one, 3 by the reference"):
        agreement({"one": [True, False]}, [True] * 3)
