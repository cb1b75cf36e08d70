"""The benchmark of the explorer's page, in a real browser."""

import json
import os
import subprocess
import sys
from statistics import median

import pytest
from browser_page import ROOT, chromium

pytestmark = pytest.mark.slow


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "recipes/benchmarks/page.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_page_and_generate_write_the_same_in_turn(tiny_folder, tmp_path):
    if chromium() is None:
        pytest.skip("no Chromium here; install the system's, or run: playwright install chromium")
    done = run("--model", str(tiny_folder), "--repeats", "2", "--output_dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "page.json").read_text())
    assert (result["max_tokens"], result["model"]["dtype"]) == (48, "float32")
    for way, ratio in (("first", "first_token_ratio"), ("speed", "speed_ratio")):
        own, plain = result[way], result[f"plain_{way}"]
        assert len(own) == len(plain) == 2 and min(*own, *plain) > 0
        assert result[ratio] == pytest.approx(median(a / b for a, b in zip(own, plain, strict=True)))
    assert done.stdout == (tmp_path / "page.md").read_text()
    assert f"{median(result['first']) * 1000:.0f} | {result['first_token_ratio']:.2f} |" in done.stdout


def test_one_line_without_a_browser(tmp_path):
    done = run(PATH=str(tmp_path), PLAYWRIGHT_BROWSERS_PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: Chromium does not start (")
