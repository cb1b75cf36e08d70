"""Pushing to a Hub on the loopback: one commit, and one clear line for whatever goes wrong."""

import traceback

import huggingface_hub.constants as constants
import pytest
from finished_adapters import SCALAR, finish
from hub_server import READER, TOKEN, Fault, hub_server
from huggingface_hub import close_session
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from parsing import PublishSettings
from publish import main, publish
from recipe_runs import contents
from runs import run_recipe

from toolkit.errors import CalibrantError
from toolkit.publishing.hub import base_licence, open_repo, push

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the Hub library's own
REPO = "me/mine"


@pytest.fixture
def hub(monkeypatch):
    """A Hub that this process is logged in to."""
    with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: waited.append(seconds))
        disable_progress_bars()
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        waited: list[float] = []
        hub.add("me/tiny", {"README.md": b"---\nlicense: other\nlicense_name: mine\n---\n"})
        yield hub
        close_session()
        enable_progress_bars()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_folder):
    return finish(tmp_path_factory.mktemp("adapters") / "mine", tiny_folder, SCALAR)


@pytest.fixture(autouse=True)
def as_it_was(folder):
    """The folder has no card again after each test."""
    yield
    (folder / "README.md").unlink(missing_ok=True)


def settings(folder, repo: str | None = REPO, **keys) -> PublishSettings:
    return PublishSettings(str(folder), repo, **keys)


def test_a_folder_is_pushed_whole_in_one_commit(hub, folder):
    address = publish(settings(folder))
    repository = hub.repositories[REPO]
    assert [message for _, message, _ in repository.commits] == ["initial commit", "calm adapter for me/tiny"]
    assert address == f"{hub.address}/{REPO}/commit/{repository.head[0]}"
    assert not repository.private
    pushed = repository.contents()
    assert pushed.pop(".gitattributes") == b""
    assert pushed == contents(folder)
    card = pushed["README.md"].decode()
    assert "license: other\nlicense_name: mine\n" in card and f'adapter = "{REPO}"' in card
    assert hub.repositories[REPO].head[2]["adapter_model.safetensors"][1]  # through LFS


def test_a_second_push_is_one_commit_more_and_takes_away_what_is_gone(hub, folder):
    publish(settings(folder))
    old = {"vocab.json": b"{}", "their-notes.md": b"kept", **hub.repositories[REPO].contents()}
    hub.add(REPO, old)
    hub.requests.clear()
    push(REPO, [folder / "report.json"], {"README.md": _card()}, known=["vocab.json"], message="again")
    assert [message for _, message, _ in hub.repositories[REPO].commits[2:]] == ["again"]
    assert set(old) - set(hub.repositories[REPO].contents()) == {"vocab.json"}
    assert sum("/commit/" in path for _, path in hub.requests) == 1


def _card() -> str:
    return "---\nbase_model: me/tiny\ntags: [lora]\n---\n"


def test_the_repository_is_private_where_asked_for(hub, folder):
    publish(settings(folder, private=True))
    assert hub.repositories[REPO].private
    hub.add("me/open", {})
    with pytest.raises(CalibrantError, match="everybody sees it"):
        publish(settings(folder, "me/open", private=True))
    assert len(hub.repositories["me/open"].commits) == 1


def test_without_an_owner_it_goes_to_the_account_of_the_token(hub, folder):
    publish(settings(folder, None))
    assert "me/mine" in hub.repositories
    assert 'adapter = "me/mine"' in (folder / "README.md").read_text()


def test_a_dry_run_sends_nothing_and_writes_nothing(hub, folder, capsys):
    before = contents(folder)
    shown = publish(settings(folder, dry_run=True, private=True))
    assert hub.requests == [] and contents(folder) == before
    assert f"private repository, if there is none yet: {REPO}" in shown and "```python" in shown
    for name, content in before.items():
        assert f"{len(content):>12,}  {name}\n" in shown
    assert "nothing was sent or written" in shown


def test_a_licence_that_is_not_to_be_had_is_left_out(hub):
    assert base_licence("me/tiny") == {"license": "other", "license_name": "mine"}
    assert base_licence("me/none") == {}
    hub.faults.append(Fault("GET", "me/tiny", "cut"))
    assert base_licence("me/tiny") == {}


UPLOAD, COMMIT = ("PUT", "/objects/"), ("POST", "/commit/")
FAULTS = {
    "401": (Fault("POST", "preupload", 401), "`hf auth login`"),
    "403 create": (Fault("POST", "repos/create", 403), "may not write to me/mine"),
    "403 commit": (Fault(*COMMIT, 403), "may not write to me/mine"),
    "404": (Fault("POST", "preupload", 404), "is not on the Hub"),
    "409": (Fault(*COMMIT, 409), "has just changed me/mine"),
    "412": (Fault(*COMMIT, 412), "has just changed me/mine"),
    "429 commit": (Fault(*COMMIT, 429, headers={"Retry-After": "7"}), "in 7 seconds"),
    "429 upload": (Fault(*UPLOAD, 429, times=99, headers={"Retry-After": "7"}), "in 7 seconds"),
    "500": (Fault(*COMMIT, 500), "a fault of its own (500"),
    "503": (Fault("POST", "objects/batch", 503, times=99), "a fault of its own (503"),
    "500 page": (Fault("POST", "validate-yaml", 500, body="<html>"), "run the same command again"),
    "400 card": (Fault("POST", "validate-yaml", 400), "run the same command again"),
    "cut create": (Fault("POST", "repos/create", "cut"), "connection to the Hub broke"),
    "cut upload": (Fault(*UPLOAD, "cut", times=99), "connection to the Hub broke"),
    "cut commit": (Fault(*COMMIT, "cut"), "connection to the Hub broke"),
    "arrives wrong": (Fault(*UPLOAD, "arrives wrong", times=99), "not what its hash says"),
    "nonsense": (Fault("POST", "preupload", 200, body="[]"), "run the same command again"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_changes_nothing(fault, hub, folder, capsys, monkeypatch):
    injected, expected = FAULTS[fault]
    hub.faults.append(Fault(injected.method, injected.path, injected.answer, injected.times,
                            injected.headers, injected.body))  # fmt: skip
    before = contents(folder)
    monkeypatch.setattr("sys.argv", ["publish.py", str(folder), REPO])
    with pytest.raises(SystemExit) as caught:
        run_recipe(main)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    [line] = [line for line in printed.err.splitlines() if not line.startswith("warning: paths of this")]
    assert line.startswith("error: ") and expected in line and "nothing was committed" in line
    assert printed.out == ""
    assert contents(folder) == before
    assert REPO not in hub.repositories or len(hub.repositories[REPO].commits) == 1
    hub.faults.clear()
    publish(settings(folder))  # the same command goes on
    assert hub.repositories[REPO].contents()["README.md"] == (folder / "README.md").read_bytes()


@pytest.mark.parametrize("answer", [503, "cut", "429"])
def test_a_fault_that_passes_is_waited_for(answer, hub, folder):
    answer, headers = (429, {"Retry-After": "1"}) if answer == "429" else (answer, {})
    hub.faults.append(Fault(*UPLOAD, answer, times=2, headers=headers))
    publish(settings(folder))
    assert len(hub.repositories[REPO].commits) == 2


def test_what_has_arrived_is_not_sent_again(hub, folder):
    hub.faults.append(Fault(*COMMIT, 500))
    with pytest.raises(CalibrantError):
        publish(settings(folder))
    hub.requests.clear()
    publish(settings(folder))
    assert not [path for method, path in hub.requests if method == "PUT"]


@pytest.mark.parametrize(
    ("token", "repo", "expected"),
    [
        (None, REPO, "nobody is logged in"),
        ("hf_unknownunknownunknown", REPO, "401"),
        (READER, "reader/mine", "403"),
        (TOKEN, "others/mine", "may not write to others/mine"),
    ],
)
def test_rights_that_are_missing_are_named(token, repo, expected, hub, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(CalibrantError, match=expected) as caught:
        publish(settings(folder, repo))
    assert "\n" not in str(caught.value) and "unknown" not in str(caught.value)
    assert repo not in hub.repositories


def test_offline_is_said(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CalibrantError, match="HF_HUB_OFFLINE"):
        open_repo(REPO, private=False)
    assert hub.requests == []


def test_a_token_is_never_shown_or_kept(hub, folder, capsys, monkeypatch, caplog):
    echo = f'{{"error": "no right for Bearer {TOKEN} nor hf_anotheranotherone"}}'
    hub.faults.append(Fault(*UPLOAD, 500, times=99))
    with pytest.raises(CalibrantError) as caught:
        publish(settings(folder))
    hub.faults[:] = [Fault(*COMMIT, 403, body=echo, headers={"X-Error-Message": f"not with {TOKEN}"})]
    with pytest.raises(CalibrantError) as refused:
        publish(settings(folder))
    assert "not with <token>" in str(refused.value)
    for error in (caught.value, refused.value):
        shown = "".join(traceback.format_exception(error, chain=True))
        assert TOKEN not in shown and "anotherone" not in shown and "signature=secret" not in shown
    publish(settings(folder))
    printed = capsys.readouterr()
    for text in (printed.out, printed.err, caplog.text):
        assert TOKEN not in text and "signature=secret" not in text
    assert not any(TOKEN.encode() in content for content in contents(folder).values())
    assert not any(TOKEN.encode() in content for content in hub.repositories[REPO].contents().values())


@pytest.mark.parametrize("repo", ["a/b/c", "me/", "me/a b", "-x", "me/../you"])
def test_an_id_that_cannot_be_is_refused_before_anything(repo, hub, folder):
    with pytest.raises(CalibrantError, match="cannot be the id"):
        publish(settings(folder, repo))
    assert hub.requests == []


def test_nothing_is_sent_of_a_folder_that_is_not_whole(hub, folder, tmp_path):
    with pytest.raises(CalibrantError, match="no folder"):
        publish(settings(tmp_path / "none"))
    assert hub.requests == []
