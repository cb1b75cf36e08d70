"""The folder of a run: what is finished, foreign, other or in use is left as it is."""

import pytest
from runs import open_run

from toolkit.errors import CalibrantError

CONFIG = "method: calm\ntraining:\n  steps: 10\n"


def unfinished(folder):
    with pytest.raises(InterruptedError), open_run(folder, CONFIG, finished="report.json"):
        (folder / "history.jsonl").write_text("{}\n")
        raise InterruptedError


def refused(folder, words, config=CONFIG, active=True):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with (
        pytest.raises(CalibrantError, match=words) as error,
        open_run(folder, config, finished="report.json", active=active),
    ):
        raise AssertionError
    assert "\n" not in str(error.value) and "another --output_dir" in str(error.value)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_new_folder_holds_its_config_and_no_lock_afterwards(tmp_path):
    with open_run(tmp_path / "a" / "b", CONFIG, finished="report.json"):
        (tmp_path / "a" / "b" / "report.json").write_text("{}")
    assert {path.name for path in (tmp_path / "a" / "b").iterdir()} == {"config.yaml", "report.json"}


@pytest.mark.parametrize("active", [True, False])
def test_a_finished_run_is_never_touched(tmp_path, active):
    (tmp_path / "report.json").write_text("{}")
    refused(tmp_path, "already holds a finished run", active=active)


def test_an_unfinished_run_is_resumed_with_the_same_settings_only(tmp_path):
    unfinished(tmp_path)
    refused(tmp_path, r"training.steps: 10 before, 20 now", CONFIG.replace("10", "20"))
    with open_run(tmp_path, CONFIG, finished="report.json"):
        assert (tmp_path / "history.jsonl").read_text() == "{}\n"


def test_a_fault_before_the_first_step_leaves_room_for_other_settings(tmp_path):
    with pytest.raises(InterruptedError), open_run(tmp_path, CONFIG, finished="report.json"):
        raise InterruptedError
    with open_run(tmp_path, CONFIG.replace("10", "20"), finished="report.json"):
        assert "20" in (tmp_path / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("thesis.tex", "mine", "is not empty and holds no run"),
        ("config.yaml", "port: 80\n", "with other settings"),
        ("config.yaml", "a: [", "its config.yaml is damaged"),
    ],
)
def test_files_of_others_are_left_alone(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    refused(tmp_path, words)


def test_two_commands_cannot_share_a_folder(tmp_path):
    with open_run(tmp_path, CONFIG, finished="report.json"):
        with (
            pytest.raises(CalibrantError, match="is in use by another command"),
            open_run(tmp_path, CONFIG, finished="report.json"),
        ):
            raise AssertionError
        assert (tmp_path / ".lock").exists()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with (
            pytest.raises(CalibrantError, match="file.* cannot be used"),
            open_run(folder, CONFIG, finished="report.json"),
        ):
            raise AssertionError
    assert (tmp_path / "file").read_text() == "mine"
