"""A kept model of one's own data, or of one's own architecture, is used from its folder alone."""

import csv
import io
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from PIL import Image

import dpexp
from dpexp.cli import predict
from dpexp.cli.parts import build_task
from dpexp.types import ConfigError
from tests.marks import few, long
from tests.own_data import save_csv, save_folders, save_lines, save_parquet
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.texts import save_distilbert, save_model, sentences

SHORT = "method=dpsgd eps=8 epochs=1 batch_size=20 device=cpu"


def moved(run, tmp_path):
    """The run's folder alone, elsewhere."""
    return shutil.copytree(run.directory, tmp_path / "elsewhere" / run.directory.name)


def printed(capsys, *words):
    assert predict.main([str(word) for word in words]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def outputs_of(run):
    """What the trained model gives for the task's test examples."""
    test = build_task(run.config, torch.device("cpu")).test
    with torch.no_grad():
        return run.model(test.batch(torch.arange(len(test))).inputs)


@pytest.mark.parametrize("resized", ["", "task.input_shape=[3,8,8]"])
def test_images_of_folders(resized, tmp_path, capsys):
    flowers = save_folders(
        tmp_path / "flowers",
        {"train": {"daisy": 40, "a rose": 40}, "test": {"daisy": 6, "a rose": 5}},
    )
    run = dpexp.run(
        f"task=images data={flowers} dataset_size=80 {SHORT} model=wrn10_1 {resized}",
        f"results={tmp_path}",
    )
    folder, expected = moved(run, tmp_path), outputs_of(run)
    model = dpexp.load(folder)
    paths = sorted((flowers / "test").rglob("*.png"), key=lambda p: (p.parent.name, p.name))
    torch.testing.assert_close(model.outputs(paths), expected)
    assert {*model.classes} == {"daisy", "a rose"}
    lines = printed(capsys, folder, flowers / "test")
    assert len(lines) == 11 and {line["prediction"] for line in lines} <= {"daisy", "a rose"}
    other = tmp_path / "other.png"
    Image.new("RGB", (16, 16)).save(other)
    if resized:
        assert len(printed(capsys, folder, other)) == 1
    else:
        with pytest.raises(ConfigError, match="8 x 8 pixels"):
            model.predict([other])


@pytest.fixture
def hub(tmp_path):
    save_model(tmp_path / "models", "bert", longest=64)
    return tmp_path / "models"


@pytest.mark.parametrize("columns", few([1, 2], [2]))
def test_texts_of_tables(columns, hub, tmp_path, capsys):
    labels = [["bad", "good"][i % 2] for i in range(90)]
    texts = [sentences(90, seed) for seed in range(columns)]
    names = ["text", "other"][:columns]
    rows = [list(row) for row in zip(*texts, labels, strict=True)]
    path = save_csv(tmp_path / "reviews.csv", [[*names, "label"], *rows])
    run = dpexp.run(
        f"task=texts data={path} dataset_size=70 task.test_size=20 {SHORT} model=minilm "
        f"model.repo=tiny/bert model.precision=float32 task.max_length=16 model_root={hub}",
        f"task.text_columns=[{','.join(names)}] task.classes=[bad,good] results={tmp_path}",
    )
    shutil.rmtree(hub)
    folder = moved(run, tmp_path)
    model = dpexp.load(folder)
    raw = [row[0] if columns == 1 else tuple(row[:2]) for row in rows]
    expected = [str(guess.label) for guess in model.predict(raw)]
    kinds = [
        path,
        save_lines(tmp_path / "r.jsonl", [dict(zip(names, row, strict=False)) for row in rows]),
        save_parquet(tmp_path / "r.parquet", dict(zip(names, texts, strict=True))),
    ]
    plain = tmp_path / "r.txt"
    separated = [[text.replace(" ", "\u2028", 1) for text in row[:columns]] for row in rows]
    plain.write_text("\n".join("\t".join(row) for row in separated) + "\n", encoding="utf-8")
    for kind in (*kinds, plain):
        lines = printed(capsys, folder, kind)
        assert [line["prediction"] for line in lines] == expected
        assert str(kind) in lines[3]["input"]
    other = save_csv(
        tmp_path / "semicolons.csv", [names, *(r[:columns] for r in rows)], delimiter=";"
    )
    lines = printed(capsys, folder, other, "task.delimiter=;")
    assert [line["prediction"] for line in lines] == expected
    assert {*expected} <= {"bad", "good"}


def houses(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(200):
        rooms, heating = int(rng.integers(1, 13)), ["gas", "oil"][rng.integers(2)]
        rows.append([rooms, heating, 50 * rooms, ["no", "yes"][rooms > 6]])
    table = [["rooms", "heating", "price", "sold"], *rows]
    return rows, save_csv(tmp_path / "h.csv", table, delimiter=";")


@pytest.mark.parametrize("target", few(["price", "sold"], ["price"]))
def test_rows_of_a_table(target, tmp_path, capsys):
    rows, path = houses(tmp_path)
    said = "task.target_range=[0,1000]" if target == "price" else "task.classes=[no,yes]"
    run = dpexp.run(
        f"task=table data={path} dataset_size=150 task.test_size=50 task.target={target} {said}",
        f"'task.columns={{rooms:[1,12],heating:[gas,oil]}}' {SHORT} results={tmp_path}",
        "task.delimiter=';'",
    )
    folder = moved(run, tmp_path)
    model = dpexp.load(folder)
    raw = [{"rooms": row[0], "heating": row[1]} for row in rows]
    guesses = model.predict(raw)
    lines = printed(capsys, folder, path)
    commas = save_csv(
        tmp_path / "commas.csv", [["heating", "rooms"], *([r[1], r[0]] for r in rows)]
    )
    assert [line["prediction"] for line in printed(capsys, folder, commas, "task.delimiter=,")] == [
        line["prediction"] for line in lines
    ]
    assert predict.main([str(folder), str(commas), *["task.delimiter=,"] * 2]) == 2
    if target == "price":
        task = build_task(run.config, torch.device("cpu"))
        scaled = outputs_of(run)[:, 0]
        error = float((scaled - task.test.targets).abs().mean()) * 1000
        assert error == pytest.approx(run.result["test_absolute_error"], rel=1e-5)
        assert [float(line["prediction"]) for line in lines] == pytest.approx(
            [guess.label for guess in guesses]
        )
        assert max(abs(guess.label) for guess in guesses) > 1  # in the target's own unit
    else:
        assert [line["prediction"] for line in lines] == [guess.label for guess in guesses]
    with pytest.raises(ConfigError, match="heating"):
        model.predict([{"rooms": 3}])
    with pytest.raises(ConfigError, match="gas, oil"):
        model.predict([{"rooms": 3, "heating": "sun"}])


TINY = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}


def test_a_classifier_of_transformers_is_loaded_by_transformers_too(hub, tmp_path):
    save_distilbert(hub)
    labels = [["bad", "good"][i % 2] for i in range(90)]
    rows = [list(row) for row in zip(sentences(90, 1), labels, strict=True)]
    path = save_csv(tmp_path / "reviews.csv", [["text", "label"], *rows])
    run = dpexp.run(
        f"task=texts data={path} dataset_size=70 task.test_size=20 {SHORT} model=hf repo=tiny/bert "
        f"task.max_length=16 model_root={hub} task.classes=[bad,good] results={tmp_path}",
    )
    shutil.rmtree(hub)
    folder = moved(run, tmp_path)
    texts = [row[0] for row in rows[:9]]
    expected = dpexp.load(folder).outputs(texts)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, return_tensors="pt"
    )
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        found = whole(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    torch.testing.assert_close(found.logits, expected, atol=1e-5, rtol=1e-4)
    assert [*whole.config.id2label.values()] == ["bad", "good"]


@pytest.mark.parametrize(
    "words",
    [
        long(
            "model=torchvision name=resnet18 model.pretrained=false model.fix=true model.resize=32"
        ),
        long(
            "model=timm name=test_efficientnet model.pretrained=false "
            "model.fix=true model.resize=32"
        ),
        "model=python target=tests.test_kept_own.Mine model.args.width=5",
    ],
)
def test_models_of_other_libraries_and_of_ones_own(words, tmp_path):
    if "timm" in words:
        pytest.importorskip("timm", reason="timm is an extra")
    said = f"task=digits {SHORT} {words}".replace("epochs=1", "epochs=0.1")
    run = dpexp.run(said, f"results={tmp_path}")
    folder = moved(run, tmp_path)
    if "python" in words:
        with pytest.raises(ConfigError, match="trust=True"):
            dpexp.load(folder)
    card = (folder / "README.md").read_text()
    assert ("trust=True" in card, "FILES trust=true" in card) == ("python" in words,) * 2
    model = dpexp.load(folder, trust="python" in words)
    test = build_task(run.config, torch.device("cpu")).test
    loaded = dpexp.load(run.directory, trust=True)
    torch.testing.assert_close(model.outputs(test.inputs), loaded.outputs(test.inputs))
    right = model.outputs(test.inputs).argmax(1) == test.targets
    assert 100 * float(right.float().mean()) == pytest.approx(run.accuracy, abs=0.3)
    if "python" in words:  # such a setting, of no effect, was not refused before
        config = folder / "config.yaml"
        config.write_text(
            config.read_text().replace("    width: 5", "    width: 5\n    num_classes: 3")
        )
        assert "num_classes: 3" in config.read_text()
        older = dpexp.load(folder, trust=True)
        torch.testing.assert_close(older.outputs(test.inputs), loaded.outputs(test.inputs))


class Mine(torch.nn.Module):
    def __init__(self, num_classes, width):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, width), torch.nn.Linear(width, num_classes)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1))))


def test_a_model_that_was_handed_over_is_loaded_into_one_like_it_alone(tmp_path):
    inputs, labels = torch.randn(60, 4), torch.arange(60) % 2
    settings = {"eps": 8, "epochs": 1, "batch_size": 20, "lr": 0.1, "results": tmp_path}
    run = dpexp.train(
        torch.nn.Sequential(torch.nn.Linear(4, 2)),
        (inputs[:40], labels[:40]),
        (inputs[40:], labels[40:]),
        **settings,
    )
    for trust in (False, True):  # its config has nothing to build it with, whoever is trusted
        with pytest.raises(ConfigError, match=r"does not say .* dpexp.load\(directory, model\)"):
            dpexp.load(run.directory, trust=trust)
    loaded = dpexp.load(run.directory, torch.nn.Sequential(torch.nn.Linear(4, 2)))
    for wrong, said in ((torch.ones(2, 7), "fails on these"), (torch.ones(4), r"input\[None\]")):
        with pytest.raises(ConfigError, match=said):
            loaded.predict(wrong)
    torch.testing.assert_close(loaded.outputs(inputs), run.model(inputs))
    assert [guess.label for guess in loaded.predict(inputs)] == run.model(inputs).argmax(1).tolist()
    for wrong, said in (
        (torch.nn.Linear, r"got the class Linear\. Pass a model of it: Linear\(\.\.\.\)\.$"),
        (len, r"got builtin_function_or_method\. Pass a module, whose forward may call it\.$"),
        (loaded.module.state_dict(), r"got OrderedDict\. Pass a module\.$"),
        (torch.nn.Linear(4, 2), r'"0\.bias"\. Pass one of the same architecture'),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            dpexp.load(run.directory, wrong)
        assert "\n" not in str(refused.value)
    card = (run.directory / "README.md").read_text()
    assert f'dpexp.load("{run.directory.name}", Model())' in card and "dpexp predict" not in card


def test_inputs_are_read_as_the_training_read_them(tmp_path):
    bytes_, labels = torch.randint(256, (60, 4), dtype=torch.uint8), torch.arange(60) % 2
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    settings = {"eps": 8, "epochs": 1, "batch_size": 20, "lr": 0.1, "results": tmp_path}
    run = dpexp.train(model, (bytes_[:40], labels[:40]), (bytes_[40:], labels[40:]), **settings)
    loaded, floats = dpexp.load(run.directory, model), bytes_ / 255
    expected = loaded.predict(floats)
    frame = pd.DataFrame(floats.numpy())
    for same in (bytes_, bytes_.numpy(), floats.numpy(), frame, [*floats], [*floats.numpy()]):
        assert [guess.label for guess in loaded.predict(same)] == [g.label for g in expected]
    assert loaded.predict(floats.tolist()) == expected and loaded.predict([]) == []
    for wrong in (None, "x", (floats, labels), (row for row in floats), [floats[0], floats[:2]], 3):
        with pytest.raises(ConfigError, match="Expected inputs as a tensor or array .* without"):
            loaded.predict(wrong)
