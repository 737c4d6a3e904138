"""Series of a run's record: one source for both axes, in order, finite; what lacks is named."""

import json

import numpy as np
import pytest

from dpexp import records


def written(tmp_path, lines=(), **arrays):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"torn": ')
    if arrays:
        np.savez(tmp_path / records.ANALYSIS, **arrays)
    return tmp_path


def test_a_column_of_the_metrics_comes_with_their_epochs(tmp_path):
    lines = [{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": None}, {"epoch": 3}]
    lines += [{"epoch": 5, "loss": 1.0}, {"epoch": 4, "loss": 2.0}, {"epoch": 6}]
    run = written(tmp_path, lines, epoch=np.arange(9))
    x, y = records.series(run, "loss", "epoch")
    assert x.tolist() == [1, 2, 4, 5]
    assert np.array_equal(y, [3, np.nan, 2, 1], equal_nan=True)  # null: it was not finite


@pytest.mark.parametrize("name", ["epsilon", "clip_fraction", "holdout_accuracy"])
def test_what_a_line_has_no_number_of_is_no_divergence(tmp_path, name):
    lines = [{"epoch": 1, name: None}, {"epoch": 2, name: 5.0}, {"epoch": 3, name: None}]
    x, y = records.series(written(tmp_path, lines), name, "epoch")
    assert x.tolist() == [2] and y.tolist() == [5]
    with pytest.raises(records.NoSeries, match="it has no entry"):
        records.series(written(tmp_path, lines[:1]), name, "epoch")


def test_an_array_comes_with_the_analysis_own_x(tmp_path):
    lines = [{"epoch": 1, "loss": 3.0}]
    run = written(
        tmp_path, lines, epoch=np.array([0.0, 2.0]), k=np.arange(3), **{"error/a": np.ones(3)}
    )
    x, y = records.series(run, "error/a", "k")
    assert x.tolist() == [0, 1, 2] and y.tolist() == [1, 1, 1]
    with pytest.raises(records.NoSeries, match=r"error/a over epoch \(shapes \(3,\) and \(2,\)\)"):
        records.series(run, "error/a", "epoch")
    with pytest.raises(records.NoSeries, match="^no such series: loss"):
        records.series(run, "loss", "k")


def test_what_lacks_is_named_with_the_nearest(tmp_path):
    run = written(tmp_path, [{"epoch": 1, "train_loss": 3.0}])
    with pytest.raises(records.NoSeries, match=r"trian_loss \(did you mean train_loss\?\)$"):
        records.series(run, "trian_loss", "epoch")
    with pytest.raises(records.NoSeries, match="^no such series: zzz$"):
        records.picture(run, "zzz")


def test_a_run_that_diverged_ends_so(tmp_path):
    lines = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": None}, {"epoch": 3, "loss": 1.0},
             {"epoch": 4, "loss": None}]  # fmt: skip
    x, y = records.series(written(tmp_path, lines), "loss", "epoch")
    assert x.tolist() == [1, 2, 3, 4]
    assert np.array_equal(y, [2, np.nan, 1, np.nan], equal_nan=True)


def test_an_array_s_nan_may_be_no_observation_unless_it_ends_so(tmp_path):
    nan, inf = np.nan, np.inf
    arrays = {"early": [nan, 1.0, nan, 2.0], "late": [1.0, nan, nan, nan], "large": [1, inf, 2, 3]}
    run = written(tmp_path, epoch=np.arange(4), **{k: np.array(v) for k, v in arrays.items()})
    found = {name: records.series(run, name, "epoch") for name in arrays}
    assert found["early"][0].tolist() == [1, 3] and found["early"][1].tolist() == [1, 2]
    assert found["late"][0].tolist() == [0, 3] and np.isnan(found["late"][1][1])
    assert np.array_equal(found["large"][1], [1, nan, 2, 3], equal_nan=True)


def test_a_run_that_diverged_before_it_was_looked_at_says_so(tmp_path):
    run = written(tmp_path, epoch=np.arange(2), rank=np.array([np.nan, np.inf]))
    assert np.isnan(records.series(run, "rank", "epoch")[1]).tolist() == [True, True]
    lines = written(tmp_path, [{"epoch": 1, "loss": None}, {"epoch": 2, "loss": None}])
    assert np.isnan(records.series(lines, "loss", "epoch")[1]).tolist() == [True, True]


def test_a_picture_has_two_sides(tmp_path):
    run = written(tmp_path, flat=np.ones(3), good=np.arange(6, dtype=np.float32).reshape(2, 3))
    assert records.picture(run, "good").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(records.NoSeries, match=r"its shape is \(3,\)"):
        records.picture(run, "flat")


def test_a_damaged_file_is_told(tmp_path):
    run = written(tmp_path)
    (run / records.ANALYSIS).write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(records.NoSeries, match=r"analysis\.npz is no whole \.npz file"):
        records.picture(run, "good")
