"""The served page: what programs call by name, many at once, and what must not be served."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from app_models import HOSTILE, adapter_folders
from gradio_client import Client

from app.__main__ import main, parser

ROOT = Path(__file__).parents[1]
SERVER = """
import sys, time
from app.models import load_models
from app.pages.explorer import build
from app.serving import launch
models = load_models(sys.argv[1], sys.argv[2:])
with models.using(models.base) as active:  # a pass of a real model takes a while
    active.model.register_forward_pre_hook(lambda *_: time.sleep(0.03))
page = build(models)
print(launch(page), flush=True)
page.block_thread()
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory, tiny_folder):
    """The page of a tiny model with two adapters, in a process of its own."""
    folders = adapter_folders(tmp_path_factory.mktemp("adapters"), tiny_folder)
    command = [sys.executable, "-c", SERVER, str(tiny_folder), *map(str, folders)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()


def connect(address: str) -> Client:
    return Client(address, verbose=False, analytics_enabled=False)


def test_named_functions(address):
    client = connect(address)
    base, first, hostile = names = client.predict(api_name="/models")
    assert first == "first" and hostile == HOSTILE
    steps = list(client.submit("What is it?", base, "chat", 0, 1, 6, 0, api_name="/ask"))
    lengths = [len(step["tokens"]) for step in steps]
    assert lengths[:6] == [1, 2, 3, 4, 5, 6] and set(lengths[6:]) == {6}  # one token at a time
    assert 0 < steps[-1]["confidence"]["token"] < 1 and steps[-1]["tokens"][0]["rank"] == 1
    for name in names:
        found = client.predict("What is it?", ["the", "and"], name, api_name="/choose")
        assert sum(found["probabilities"]) == pytest.approx(1) and 0 < found["mass"] < 1
    found = client.predict("What is it?", first, "plain", 2, api_name="/confidence")
    assert {"token", "p_true", "agreement", "stated"} >= set(found["confidence"]) and len(
        found["samples"]
    ) == 2


def test_ten_at_once_get_their_own_model(address):
    names = connect(address).predict(api_name="/models")
    ask = ("chat", 0, 1, 16, 0)
    alone = {name: connect(address).predict("What is it?", name, *ask, api_name="/ask") for name in names}
    assert len({json.dumps(one["tokens"]) for one in alone.values()}) == 3
    found: list[tuple[str, object]] = []

    def request(number: int) -> None:
        name = names[number % 3]
        found.append((name, connect(address).predict("What is it?", name, *ask, api_name="/ask")))

    threads = [threading.Thread(target=request, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert len(found) == 10
    assert all(one == alone[name] for name, one in found)


def test_a_cancelled_answer_frees_the_model(address):
    client = connect(address)
    base = client.predict(api_name="/models")[0]
    job = client.submit("What is it?", base, "chat", 1.5, 1, 256, 0, api_name="/ask")
    while not job.outputs():
        time.sleep(0.01)
    job.cancel()
    seen = len(job.outputs())
    other = client.submit("What is it?", base, "chat", 0, 1, 2, 0, api_name="/ask").result(timeout=60)
    assert len(other["tokens"]) <= 2
    assert len(job.outputs()) <= seen + 2


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [("/ask", ("What?", "/etc/passwd"), "no model"), ("/ask", (" ", "first"), "no question"),
     ("/choose", ("What?", ["a"], "first"), "at least two")],
)  # fmt: skip
def test_faults_are_said(address, name, arguments, message):
    with pytest.raises(Exception, match=message):
        connect(address).predict(*arguments, api_name=name)


@pytest.mark.parametrize("path", ["file=/etc/hostname", "file=pyproject.toml", "static/../../app/api.py"])
def test_no_file_is_served(address, path):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{address}gradio_api/{path}", timeout=30).close()
    assert caught.value.code in (403, 404)
    caught.value.close()


def test_command_line(capsys, tiny_folder):
    chosen = parser().parse_args([])
    assert (chosen.model, chosen.host, chosen.share, chosen.adapter) == ("bundled", "127.0.0.1", False, None)
    assert main(["--model", str(tiny_folder), "--adapter", "/no/such"]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: no adapter folder /no/such") and "Traceback" not in "".join(lines)


def test_a_space_builds_its_page_without_adapters(tiny_folder):
    code = (
        "from app.space.app import demo\n"
        "print(*[fn.api_name for fn in demo().fns.values() if fn.api_visibility == 'public'])"
    )
    built = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"MODEL": str(tiny_folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.stdout.split() == ["models", "ask", "confidence", "choose"], built.stderr
