"""Figures: what is drawn, read from the artists, and what is written."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from toolkit.errors import CalibrantError
from toolkit.evaluation.metrics import ece, reliability
from toolkit.evaluation.plots import Panel, reliability_diagram, training_curves


def panel(n=200, seed=0, title="worldfacts/chemistry · base"):
    """Confidences with nothing in two bins, one of them in the middle."""
    rng = np.random.default_rng(seed)
    confidence = rng.choice([0.27, 0.35, 0.44, 0.62, 0.75, 0.88, 0.97], size=n)
    return Panel(title, confidence, rng.random(n) < 0.6)


def axes_of(figure):
    """The diagrams and the counts below them, in the order of the panels."""
    return figure.axes[::2], figure.axes[1::2]


def spans(bars):
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]


def history(steps=40, every=10):
    rows = []
    for step in range(1, steps + 1):
        row = {"step": step, "lower": 2 / step, "upper_entropy": 0.4 + step / 100}
        row |= {"lambda": 0.0 if step % 3 else 10.0 ** (step % 5), "grad_norm": 1.0}
        row |= {"alpha_delta_mean": 1.0, "alpha_delta_min": 0.5, "alpha_delta_max": 2.0}
        if step % every == 0:
            row |= {"validation_nll": 1.0, "validation_entropy": 0.8, "validation_accuracy": 0.7}
        rows.append(row)
    return rows


def test_no_bar_for_an_empty_bin_and_counts_add_up(tmp_path):
    shown = [panel(200, 1), panel(300, 2)]
    figure = reliability_diagram(shown, tmp_path / "reliability.png")
    for (_, confidence, correct), upper, lower in zip(shown, *axes_of(figure), strict=True):
        table = reliability(confidence, correct)
        full = [b for b in table if b.count]
        assert 0 < len(full) < len(table)
        for bars in (upper.containers[0], lower.containers[0]):
            assert len(bars) == len(full)
            for (left, right), b in zip(spans(bars), full, strict=True):
                assert b.low < left < right < b.high
        assert sum(int(text.get_text()) for text in lower.texts) == len(confidence)
        assert [text.get_text() for text in lower.texts] == [str(b.count) for b in full]


def test_bars_reach_the_accuracy_and_gaps_the_mean_confidence(tmp_path):
    shown = panel()
    figure = reliability_diagram([shown], tmp_path / "reliability.png")
    upper = figure.axes[0]
    full = [b for b in reliability(shown.confidence, shown.correct) if b.count]
    accuracy, too_sure, not_sure_enough = upper.containers
    assert [bar.get_height() for bar in accuracy] == pytest.approx([b.accuracy for b in full])
    assert len(too_sure) and len(not_sure_enough)
    assert all(bar.get_height() > 0 for bar in too_sure)
    assert all(bar.get_height() <= 0 for bar in not_sure_enough)
    gaps = sorted([*too_sure, *not_sure_enough], key=lambda bar: bar.get_x())
    ends = [bar.get_y() + bar.get_height() for bar in gaps]
    assert ends == pytest.approx([b.confidence for b in full])
    text = " ".join(artist.get_text() for artist in upper.texts)
    error = ece(shown.confidence, shown.correct)
    assert f"accuracy {shown.correct.mean():.3f}" in text
    assert f"confidence {shown.confidence.mean():.3f}" in text
    assert f"ECE {error:.3f} (10 bins)" in text
    assert upper.get_xlim() == upper.get_ylim() == (0, 1)


@pytest.mark.parametrize(("count", "columns", "bins"), [(1, 2, 10), (4, 2, 15), (5, 3, 20)])
def test_no_text_overlaps_another_or_leaves_the_figure(tmp_path, monkeypatch, count, columns, bins):
    titles = ["base", "an adapter whose name is so long that it takes another line of the title"]
    rng = np.random.default_rng(0)
    shown = [Panel(titles[i % 2], rng.random(20_000) ** 0.1, rng.random(20_000) < 0.9) for i in range(count)]
    figure = reliability_diagram(shown, tmp_path / "reliability.png", columns=columns, bins=bins)
    assert len(figure.axes) == 2 * count
    assert_legible(figure, monkeypatch)


def test_training_curves_are_legible_and_hold_the_history(tmp_path, monkeypatch):
    rows = history()
    figure = training_curves(rows, tmp_path / "training.png")
    by_label = {ax.get_ylabel(): ax for ax in figure.axes}
    assert list(by_label) == ["entropy (nats)", "NLL (nats)", "accuracy", "weight λ", "scale Δ"]
    batches, validation = by_label["NLL (nats)"].lines
    assert np.asarray(batches.get_ydata()).tolist() == [row["lower"] for row in rows]
    assert np.asarray(validation.get_xdata()).tolist() == [10, 20, 30, 40]
    assert by_label["weight λ"].get_yscale() == "symlog"
    [band] = by_label["scale Δ"].collections
    assert band.get_paths()[0].get_extents().intervaly.tolist() == [0.5, 2.0]
    assert_legible(figure, monkeypatch)


def test_training_curves_of_one_step_and_of_a_flat_weight(tmp_path):
    figure = training_curves([{"step": 1, "lambda": 0.0, "lower": 1.0}], tmp_path / "training.png")
    assert [ax.get_ylabel() for ax in figure.axes] == ["NLL (nats)", "weight λ"]
    assert figure.axes[1].get_yscale() == "linear"
    assert all(line.get_marker() == "o" for ax in figure.axes for line in ax.lines)


def test_alpha_that_never_moves_has_no_panel(tmp_path):
    flat = {"alpha_delta_mean": 1.0, "alpha_delta_min": 1.0, "alpha_delta_max": 1.0000001}
    rows = [{"step": step, "lower": 1.0} | flat for step in range(1, 4)]
    figure = training_curves(rows, tmp_path / "training.png")
    assert [ax.get_ylabel() for ax in figure.axes] == ["NLL (nats)"]
    one_number = dict.fromkeys(flat, 1.001)  # α is one number, and has moved
    figure = training_curves([*rows, {"step": 4} | one_number], tmp_path / "training.png")
    assert [ax.get_ylabel() for ax in figure.axes] == ["NLL (nats)", "scale Δ"]


def test_title_is_shown_as_it_is(tmp_path):
    figure = reliability_diagram([panel(title="a_$b$")], tmp_path / "reliability.png")
    assert figure.axes[0].get_title() == "a_$b$"
    assert not figure.axes[0].title.get_parse_math()


def test_history_without_curves_is_refused(tmp_path):
    with pytest.raises(CalibrantError, match="nothing to draw"):
        training_curves([{"step": 1, "seconds": 2.0}], tmp_path / "training.png")


def test_image_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "reliability.png"
    reliability_diagram([panel()], path)
    assert imread(path).shape[2] == 4
    assert [p.name for p in tmp_path.iterdir()] == ["reliability.png"]
    with pytest.raises(CalibrantError, match="cannot be written"):
        reliability_diagram([panel()], path / "inside a file.png")


def test_module_leaves_the_global_state_of_matplotlib_alone():
    code = "import sys, toolkit.evaluation.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def assert_legible(figure, monkeypatch):
    """No two texts that are drawn share any place, and none leaves the figure."""
    drawn: list[Text] = []
    draw = Text.draw

    def spy(text, renderer):
        if text.get_visible() and text.get_text() and text not in drawn:
            drawn.append(text)
        draw(text, renderer)

    monkeypatch.setattr(Text, "draw", spy)
    figure.canvas.draw()
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in drawn]  # without a label's line
    assert len(boxes) > 10
    for i, (name, box) in enumerate(boxes):
        assert figure.bbox.containsx(box.x0) and figure.bbox.containsx(box.x1), name
        assert figure.bbox.containsy(box.y0) and figure.bbox.containsy(box.y1), name
        assert not [other for other, its in boxes[i + 1 :] if box.overlaps(its)], name
