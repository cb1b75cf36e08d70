"""Figures of a comparison: the data in the artists, names as they are, files whole or not at all."""

from statistics import fmean, stdev

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.image import imread
from matplotlib.text import Text
from test_plots import assert_legible

from toolkit.errors import CalibrantError
from toolkit.evaluation.comparison_plots import (
    Run,
    alpha_curves,
    ece_against_accuracy,
    entropy_against_nll,
    method_looks,
    risk_coverage_curves,
)
from toolkit.evaluation.metrics import risk_coverage

AWKWARD = ["none", "a_b$x$_{2}", "_hidden", r"50\$", "calm", "calm + T"]
IN_DOMAIN = [True, False, True]


def measured(methods, seeds=3, spread=0.1):
    rng = np.random.default_rng(0)
    keys = "accuracy", "conf_ece"
    return {name: {key: 0.4 + spread * rng.random((seeds, 3)) for key in keys} for name in methods}


def history(steps=40, every=10, seed=0, alpha=True):
    rng = np.random.default_rng(seed)
    rows = [{"step": 0, "validation_nll": 2.1, "validation_entropy": 0.6}]
    for step in range(1, steps + 1):
        row = {"step": step, "lower": 1.0}
        for key, start in (("alpha_delta", 1.0), ("alpha_iota", 0.0)):
            low, mean, high = start + alpha * 0.01 * step * np.sort(rng.normal(size=3))
            row |= {f"{key}_min": low, f"{key}_mean": mean, f"{key}_max": high}
        if step % every == 0:
            nll = 0.6 + 1.5 / step + 0.01 * rng.normal()
            row |= {"validation_nll": nll, "validation_entropy": 0.5 + 0.02 * rng.normal()}
        rows.append(row)
    return rows


def answers(n, seed):
    rng = np.random.default_rng(seed)
    confidence = rng.random(n)
    return confidence, rng.random(n) < confidence


def labels_of(ax):
    return [text.get_text() for text in ax.texts]


def xy(line):
    return np.column_stack([line.get_xdata(), line.get_ydata()])


def test_points_are_means_and_bars_deviations_over_seeds(tmp_path):
    given = measured(["none", "calm"])
    figure = ece_against_accuracy(given, IN_DOMAIN, tmp_path / "ece.png")
    assert [ax.get_title() for ax in figure.axes] == ["in domain: 2 test sets", "out of domain: 1 test set"]
    for ax, places in zip(figure.axes, ([0, 2], [1]), strict=True):
        for found, drawn in zip(given.values(), ax.containers, strict=True):
            assert isinstance(drawn, ErrorbarContainer)
            for i, key in enumerate(("accuracy", "conf_ece")):
                runs = [fmean(float(row[place]) for place in places) for row in found[key]]
                assert xy(drawn[0])[0, i] == pytest.approx(fmean(runs))
                ends = drawn[2][i].get_segments()[0][:, i]
                assert ends == pytest.approx([fmean(runs) - stdev(runs), fmean(runs) + stdev(runs)])


def test_one_seed_has_no_bars_and_one_kind_one_panel(tmp_path):
    figure = ece_against_accuracy(measured(["calm"], seeds=1), [True] * 3, tmp_path / "ece.png")
    [ax] = figure.axes
    [drawn] = ax.containers
    assert isinstance(drawn, ErrorbarContainer)
    assert not drawn[2]
    assert labels_of(ax) == ["calm"]
    assert "seed" not in figure.get_supxlabel()
    mixed = measured(["calm"]) | measured(["none"], seeds=1)
    figure = ece_against_accuracy(mixed, [True] * 3, tmp_path / "ece.png")
    assert [len(drawn[2]) for drawn in figure.axes[0].containers] == [2, 0]


@pytest.mark.parametrize("spread", [0.1, 0.02])
def test_labels_of_eighteen_methods_do_not_overlap(tmp_path, monkeypatch, spread):
    methods = [*AWKWARD, "sft", "sft + T", *(f"another-method-{i}" for i in range(10))]
    given = measured(methods, spread=spread) | measured(["far away"], spread=0.5)
    figure = ece_against_accuracy(given, IN_DOMAIN, tmp_path / "ece.png")
    assert all(labels_of(ax) == [*methods, "far away"] for ax in figure.axes)
    assert_legible(figure, monkeypatch)


def test_looks_are_told_apart_in_grey_and_found_again():
    names = [
        "none",
        "none + T",
        "calm",
        "calm + T",
        *(f"m{i}" for i in range(20)),
        *(f"m{i} + T" for i in range(9)),
        *(f"m{i} + T*" for i in range(9)),
    ]
    looks = method_looks(names)
    assert list(looks) == names
    untempered = [look for name, look in looks.items() if " + T" not in name]
    assert len({(look.marker, look.fill) for look in looks.values()}) == len(names)
    assert len({(look.colour, look.line) for look in untempered}) > 18
    for name in ("none", "calm", "m3"):
        look, tempered = looks[name], looks[f"{name} + T"]
        assert (look.colour, look.marker, look.strong) == (tempered.colour, tempered.marker, tempered.strong)
        assert tempered.marked()["markerfacecolor"] == "white" != look.marked()["markerfacecolor"]
    assert [look for look in untempered if look.strong] == [looks["none"], looks["calm"]]
    assert method_looks(["m0", "calm", "m1"])["m1"] == looks["m1"]


def test_alpha_curves_hold_a_line_for_each_seed_and_the_band_over_them(tmp_path, monkeypatch):
    long, short = history(40, seed=1), history(30, seed=2)
    given = {
        "sft": [Run(history(alpha=False))],
        "calm_$a$": [Run(long), Run(short)],
        "untouched": [Run([{"step": 1, "lower": 1.0}])],
        "calm": [Run(history(20, seed=3))],
    }
    figure = alpha_curves(given, tmp_path / "alpha.png")
    assert figure is not None
    upper, lower, *others = figure.axes
    assert [ax.get_title() for ax in figure.axes[::2]] == ["calm_$a$", "calm"]
    assert len(others) == 2
    for ax, key in ((upper, "alpha_delta"), (lower, "alpha_iota")):
        for rows, line in zip((long, short), ax.lines, strict=False):
            assert xy(line).tolist() == [[row["step"], row[f"{key}_mean"]] for row in rows[1:]]
        [band] = ax.collections
        edge = {tuple(corner) for corner in np.asarray(band.get_paths()[0].vertices).tolist()}
        for step in range(1, 41):
            at = [rows[step] for rows in (long, short) if step < len(rows)]
            assert (step, min(row[f"{key}_min"] for row in at)) in edge
            assert (step, max(row[f"{key}_max"] for row in at)) in edge
    assert_legible(figure, monkeypatch)


def test_more_methods_than_columns_go_below(tmp_path, monkeypatch):
    given = {f"calm-number-{i}": [Run(history(seed=i))] for i in range(5)}
    figure = alpha_curves(given, tmp_path / "alpha.png", columns=3)
    assert figure is not None
    assert [ax.get_ylabel() for ax in figure.axes] == ["scale Δ", "shift ι", *[""] * 4] + [
        "scale Δ",
        "shift ι",
        "",
        "",
    ]
    assert_legible(figure, monkeypatch)


def test_no_figure_where_no_alpha_moves(tmp_path):
    given = {"sft": [Run(history(alpha=False))] * 3, "other": [Run([])], "none": []}
    assert alpha_curves(given, tmp_path / "alpha.png") is None
    assert not list(tmp_path.iterdir())


def test_ways_are_means_at_the_steps_that_all_seeds_have(tmp_path, monkeypatch):
    long, short = history(40, seed=1), history(30, seed=2)
    given = {name: [Run(long, 40), Run(short, 20)] for name in AWKWARD} | {"sft": [Run(history(seed=3), 40)]}
    figure = entropy_against_nll(given, tmp_path / "entropy.png")
    whole, near = figure.axes
    keys = "validation_nll", "validation_entropy"
    way = [[fmean(rows[step][key] for rows in (long, short)) for key in keys] for step in (0, 10, 20, 30)]
    end = [(long[40][key] + short[20][key]) / 2 for key in keys]
    for ax in (whole, near):
        drawn, start, kept = ax.lines[1:4]
        assert xy(drawn) == pytest.approx(np.array(way))
        assert xy(start)[0] == pytest.approx(way[0])
        assert xy(kept)[0] == pytest.approx(end)
        assert np.array_equal(*xy(ax.lines[0]).T)
    assert whole.get_xlim()[0] == whole.get_ylim()[0]
    assert labels_of(near) == list(given)
    assert "kept step" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert_legible(figure, monkeypatch)


def test_a_way_without_a_kept_step_ends_at_its_last_step(tmp_path):
    rows = history()
    figure = entropy_against_nll({"calm": [Run(rows)]}, tmp_path / "entropy.png")
    last = [rows[40]["validation_nll"], rows[40]["validation_entropy"]]
    assert xy(figure.axes[0].lines[3])[0] == pytest.approx(last)
    assert "end" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_run_of_one_validation_is_a_point(tmp_path):
    figure = entropy_against_nll({"calm": [Run(history(5), 0)]}, tmp_path / "entropy.png")
    assert xy(figure.axes[0].lines[3]).tolist() == [[2.1, 0.6]]


def test_risks_are_means_over_seeds(tmp_path, monkeypatch):
    given = {
        title: {name: [answers(n, seed) for seed, n in enumerate((200, 200))] for name in AWKWARD}
        for title in ("a_$set$ with $", "another", "third", "fourth")
    }
    given["uneven"] = {"calm": [answers(200, 5), answers(100, 6)]}
    figure = risk_coverage_curves(given, tmp_path / "risk.png")
    assert [ax.get_title() for ax in figure.axes] == list(given)
    for ax, found in zip(figure.axes, given.values(), strict=True):
        assert [line.get_label() for line in ax.lines] == list(found)
        for seeds, line in zip(found.values(), ax.lines, strict=True):
            coverage = np.arange(10, 201) / 200
            risks = [np.interp(coverage, *risk_coverage(*one)) for one in seeds]
            assert xy(line) == pytest.approx(np.column_stack([coverage, np.mean(risks, axis=0)]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == AWKWARD
    assert_legible(figure, monkeypatch)


def test_risk_of_few_answers_of_one_method(tmp_path):
    one = np.array([0.9, 0.8, 0.7]), np.array([True, True, True])
    figure = risk_coverage_curves({"set": {"calm": [one]}}, tmp_path / "risk.png")
    assert xy(figure.axes[0].lines[0]).tolist() == [[1 / 3, 0], [2 / 3, 0], [1, 0]]
    assert figure.axes[0].get_ylim()[0] == 0


def test_equal_confidences_make_a_level_line(tmp_path):
    one = np.full(8, 0.5), np.array([True] * 2 + [False] * 6)
    figure = risk_coverage_curves({"set": {"calm": [one]}}, tmp_path / "risk.png")
    assert xy(figure.axes[0].lines[0])[:, 1] == pytest.approx(0.75)


def test_no_name_becomes_mathematics(tmp_path):
    runs = {name: [Run(history(seed=i))] for i, name in enumerate(AWKWARD)}
    figures = [
        ece_against_accuracy(measured(AWKWARD), IN_DOMAIN, tmp_path / "ece.png"),
        alpha_curves(runs, tmp_path / "alpha.png"),
        entropy_against_nll(runs, tmp_path / "entropy.png"),
        risk_coverage_curves({"$x$": {name: [answers(50, 0)] for name in AWKWARD}}, tmp_path / "risk.png"),
    ]
    for figure in figures:
        assert figure is not None
        texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
        named = [text for text in texts if text.get_text() in [*AWKWARD, "$x$"]]
        assert {text.get_text() for text in named} >= {*AWKWARD}
        assert not any(text.get_parse_math() for text in named)


def test_files_are_written_whole_or_not_at_all(tmp_path):
    def draw_all(folder):
        runs = {"calm": [Run(history())]}
        yield lambda: ece_against_accuracy(measured(["calm"]), IN_DOMAIN, folder / "ece.png")
        yield lambda: alpha_curves(runs, folder / "alpha.png")
        yield lambda: entropy_against_nll(runs, folder / "entropy.png")
        yield lambda: risk_coverage_curves({"set": {"calm": [answers(50, 0)]}}, folder / "risk.png")

    for draw in draw_all(tmp_path):
        draw()
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["alpha.png", "ece.png", "entropy.png", "risk.png"]
    assert all(imread(tmp_path / name).shape[2] == 4 for name in written)
    for draw in draw_all(tmp_path / "ece.png"):
        with pytest.raises(CalibrantError, match="cannot be written"):
            draw()
    assert sorted(path.name for path in tmp_path.iterdir()) == written


def test_what_cannot_be_drawn_is_refused(tmp_path):
    path = tmp_path / "figure.png"
    with pytest.raises(CalibrantError, match="nothing was measured"):
        ece_against_accuracy({}, IN_DOMAIN, path)
    with pytest.raises(CalibrantError, match="nothing was measured"):
        ece_against_accuracy(measured(["calm"]), [], path)
    with pytest.raises(CalibrantError, match="no method was trained"):
        entropy_against_nll({}, path)
    with pytest.raises(CalibrantError, match="no method has answers"):
        risk_coverage_curves({"set": {}}, path)
    with pytest.raises(CalibrantError, match="calm share no validated step"):
        entropy_against_nll({"calm": [Run(history()), Run([{"step": 1}])]}, path)
    with pytest.raises(CalibrantError, match="calm kept a step"):
        entropy_against_nll({"calm": [Run(history(), 7)]}, path)
    assert not list(tmp_path.iterdir())
