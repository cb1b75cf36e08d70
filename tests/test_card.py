"""The card of an adapter folder."""

import yaml

from toolkit.models.bundled import HUB_ID
from toolkit.publishing.card import card_text, write_card


def result(name, count=50, ece=0.1, ci95=(0.05, 0.15)):
    measured = {"value": ece, "ci95": ci95 and list(ci95)}
    return {
        "data": {"name": name, "split": "test", "count": count},
        "binning": {"bins": 12},
        **dict.fromkeys(("accuracy", "confidence", "conf_ece", "nll"), measured),
    }


def report(**changes):
    return {
        "model": "bundled",
        "method": "calm",
        "seed": 3,
        "prompt": {"form": "cloze", "style": "plain", "score": "token"},
        "base": {"dtype": "float32"},
        "before": [result("worldfacts/capitals", ece=0.3), result("worldfacts/chemistry", ece=0.4)],
        "results": [result("worldfacts/capitals"), result("worldfacts/chemistry", ece=0.2, ci95=None)],
        "training": {
            "sources": {
                "lower": ["worldfacts/capitals"],
                "upper": ["worldfacts/cities"],
                "seen": ["worldfacts/capitals", "worldfacts/cities"],
            },
            "lower": {"count": 90},
            "upper": {"count": 30},
        },
        "kept_step": 60,
    } | changes


def test_metadata_is_what_the_hub_reads():
    head = card_text("mine", report(), "raw").split("---\n")[1]
    metadata = yaml.safe_load(head)
    assert metadata["base_model"] == HUB_ID and metadata["library_name"] == "peft"
    assert {"lora", "calibration", "calm"} <= set(metadata["tags"])


def test_every_figure_stands_beside_its_count_interval_and_domain():
    text = card_text("mine", report(), "raw")
    rows = [line for line in text.splitlines() if line.startswith("| `worldfacts")]
    assert "in domain | 50" in rows[0] and "0.300 [0.050, 0.150] → 0.100 [0.050, 0.150]" in rows[0]
    assert "out of domain" in rows[1] and "→ 0.200 |" in rows[1]
    assert "12 equal-width" in text and "the mean over its tokens" in text
    assert "90 questions of `worldfacts/capitals`" in text and "30 questions of `worldfacts/cities`" in text


def test_an_adjusted_adapter_says_so():
    assert "Δ ⊙ z" in card_text("mine", report(), "adjusted")
    assert "Δ ⊙ z" not in card_text("mine", report(), "raw")


def test_names_stay_text():
    source = "`<img src=x onerror=alert(1)>` | a"
    training = report()["training"] | {"sources": {"lower": [source], "upper": [source], "seen": []}}
    text = card_text("mine", report(training=training), "raw")
    assert "`<img src=x onerror=alert(1)> / a`" in text


def test_the_card_is_named_as_its_folder(tmp_path):
    folder = tmp_path / "my-adapter"
    write_card(folder, report(), "raw")
    assert "# my-adapter" in (folder / "README.md").read_text(encoding="utf-8")
