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
    lines += [{"epoch": 5, "loss": 1.0}, {"epoch": 4, "loss": 2.0}]
    run = written(tmp_path, lines, epoch=np.arange(9))
    x, y = records.series(run, "loss", "epoch")
    assert x.tolist() == [1, 4, 5] and y.tolist() == [3, 2, 1]


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
    assert x.tolist() == [1, 3, 4] and y[:2].tolist() == [2, 1] and np.isnan(y[2])


def test_nothing_finite_is_no_series(tmp_path):
    run = written(tmp_path, epoch=np.arange(2), rank=np.array([np.nan, np.inf]))
    with pytest.raises(records.NoSeries, match="no finite entry"):
        records.series(run, "rank", "epoch")


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
