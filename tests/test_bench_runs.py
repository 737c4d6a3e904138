"""`make bench ARGS="--only run"`: whole runs, and the peers' scripts that they stand beside."""

import importlib
import json
import re
import sys
from dataclasses import replace

import pytest
import torch
import transformers

import dpexp
from dpexp.models.language import TextClassifier
from dpexp.models.wrn import WideResNet
from dpexp.types import ConfigError
from scripts.bench import runs
from scripts.bench import words as command
from scripts.bench.peers import minilm, sentences, wrn
from scripts.bench.runs import cases, children, examples
from scripts.bench.runs.cases import BY_LENGTH, DP_SGD, NONPRIVATE, UNIT, Sizes
from scripts.bench.runs.measure import summary
from tests.marks import long, some_long

SMALL = Sizes(train=24, test=8, batch=12)


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny_models):
    """Made-up images, and sentences of the tiny models' words, as the cases lay them out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPEXP_DATA_ROOT", "/nowhere")
        patch.setenv("DPEXP_MODEL_ROOT", str(tiny_models))
        folder = tmp_path_factory.mktemp("runs")
        told = examples.write_images(folder, SMALL.train, SMALL.test)
        assert told == "24 training and 8 test images made up in CIFAR10's shape"
        yield folder


@pytest.fixture(scope="module")
def texts(root):
    import pandas as pd

    folder = root / examples.SENTENCES
    folder.mkdir(parents=True)
    for split, count in (("train", SMALL.train), ("validation", SMALL.test)):
        some = ["a good film", "bad", "a film and a bad film"] * 8
        rows = pd.DataFrame({"sentence": some[:count], "label": ([0, 1, 1] * 8)[:count]})
        rows.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    return folder


def line_of(command, out, monkeypatch, capsys):
    """Run a peer's script in this process, with the words of its command; return its line."""
    _, module, *words = command
    monkeypatch.setattr(sys, "argv", [module, *words, "--out", str(out)])
    importlib.import_module(module).main()
    *_, last = capsys.readouterr().out.strip().split("\n")
    return json.loads(last)


def require_alike(line, out, trained, total):
    assert (line["steps"], line["tested"]) == (2, SMALL.test)
    assert (line["trained_parameters"], line["parameters"]) == (trained, total)
    assert min(line[f"{phase}_seconds"] for phase in ("setup", "train", "evaluate")) > 0
    assert 0 <= line["accuracy"] <= 100
    kept = torch.load(out / "checkpoint.pt", weights_only=True)["model"]
    assert sum(weight.numel() for weight in kept.values()) >= trained
    if "epsilon" in line:
        assert line["sampling"] == "poisson" and 7.2 < line["epsilon"] <= 8.08
        assert line["delta"] == 1e-5 and line["noise_multiplier"] > 0.3
    else:
        assert line["seen"] == SMALL.train


@pytest.mark.parametrize("name", [long(UNIT), long("Opacus hooks")])
def test_peers_of_images_take_the_same_steps_in_the_same_network(
    name, root, tmp_path, monkeypatch, capsys
):
    contender = cases.vision(SMALL, root, depth=10, width=1)[name]
    model = WideResNet(10, 1, 1, "auto", in_channels=3, num_classes=10)
    size = sum(weight.numel() for weight in model.parameters())
    line = line_of(contender.command, tmp_path, monkeypatch, capsys)
    require_alike(line, tmp_path, size, size)


@pytest.mark.parametrize("name", some_long([UNIT, BY_LENGTH, "Opacus ghost"], [BY_LENGTH]))
def test_peers_of_texts_take_the_same_steps_with_embeddings_frozen(
    name, root, texts, tiny_models, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(examples, "MINILM", "tiny/bert")
    contender = cases.language(SMALL, root)[name]
    model = minilm.Classifier(tiny_models / "tiny/bert")
    total = sum(weight.numel() for weight in model.parameters())
    frozen = sum(weight.numel() for weight in model.encoder.embeddings.parameters())
    line = line_of(contender.command, tmp_path, monkeypatch, capsys)
    require_alike(line, tmp_path, total - frozen, total)


def test_parts_by_length_are_the_batch_with_less_padding():
    items = [(torch.arange(1, size + 1), size % 2) for size in (5, 1, 4, 2, 3)]
    for is_sorted, widths in ((False, [5, 4, 3]), (True, [2, 4, 5])):
        parts = sentences.in_parts(items, 2, is_sorted=is_sorted)
        assert [inputs.shape[2] for inputs, _ in parts] == widths
        lengths = torch.cat([inputs[:, 1].sum(1) for inputs, _ in parts])
        assert sorted(lengths.tolist()) == [1, 2, 3, 4, 5]
        assert torch.equal(torch.cat([labels for _, labels in parts]), lengths % 2)


def test_a_record_says_what_a_peers_line_says(root, tmp_path):
    _, *words = cases.vision(SMALL, root, depth=10, width=1)[DP_SGD].command
    directory = dpexp.run(*words, f"results={tmp_path}").directory
    found = children.of_record(directory)
    children.require_work(DP_SGD, found, SMALL, is_private=True)
    with pytest.raises(ConfigError, match=f"Expected tested = 9 of {DP_SGD}; got {SMALL.test}"):
        children.require_work(DP_SGD, found, replace(SMALL, test=9), is_private=True)
    size = sum(weight.numel() for weight in wrn.WideResNet(10, 1, 1).parameters())
    assert found["trained_parameters"] == found["parameters"] == size
    assert found["loop_seconds"] > 0 and 0 <= found["accuracy"] <= 100
    (directory / "released.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"Expected released.jsonl in"):
        children.of_record(directory)
    (directory / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"Expected model.safetensors in"):
        children.of_record(directory)


SCRIPT = """
import json, pathlib, sys, time
held = bytearray(60_000_000)
pathlib.Path(sys.argv[2], "checkpoint.pt").touch()
line = {"steps": STEPS, "tested": 8, "train_seconds": 0.1, "evaluate_seconds": 0.05}
print("loading ...", json.dumps(line), sep="\\n")
"""


def test_a_child_is_weighed_by_itself(tmp_path):
    held = torch.ones(50_000_000)  # what this process holds is no part of it
    ran = cases.Contender(["-c", SCRIPT.replace("STEPS", "2")])
    found = children.run(UNIT, ran, SMALL, tmp_path / "one")
    assert 60 < found["megabytes"] < 130 and held.sum() > 0
    assert found["loop_seconds"] == pytest.approx(0.15) and found["steps"] == 2
    assert 0 < found["cpu_seconds"] and 0 < found["seconds"]
    with pytest.raises(ConfigError, match="Expected steps = 2 of plain PyTorch.*; got 1"):
        skipping = cases.Contender(["-c", SCRIPT.replace("STEPS", "1")])
        children.run(UNIT, skipping, SMALL, tmp_path / "two")
    with pytest.raises(ConfigError, match="Expected plain PyTorch.* to write a checkpoint"):
        keeping_none = cases.Contender(["-c", SCRIPT.replace("STEPS", "2").replace(".touch()", "")])
        children.run(UNIT, keeping_none, SMALL, tmp_path / "three")


CACHING = """
import json, os, pathlib, sys
kept = pathlib.Path(os.environ["DPEXP_CACHE"], "kept")
seen = len(kept.read_text()) if kept.exists() else 0
kept.parent.mkdir(parents=True, exist_ok=True)
kept.write_text("." * (seen + 1))
pathlib.Path(sys.argv[2], "checkpoint.pt").touch()
line = {"steps": 2, "tested": 8, "train_seconds": 0.1, "evaluate_seconds": 0.05}
print(json.dumps(line | {"accuracy": seen, "parameters": 1, "trained_parameters": 1}))
"""


def test_a_second_run_finds_what_its_first_left_and_no_other_does(tmp_path):
    first, second = NONPRIVATE, f"{NONPRIVATE}{cases.SECOND}"
    everyone = {name: cases.Contender(["-c", CACHING]) for name in (UNIT, first, second)}
    found = runs.measure(everyone, SMALL, 1, tmp_path).set_index("contender")["accuracy"]
    assert found.to_dict() == {UNIT: 0, first: 0, second: 1}


@pytest.mark.long
def test_everyone_who_is_there_does_all_of_the_work(root, tmp_path):
    everyone = cases.vision(SMALL, root, depth=10, width=1)
    table = runs.measure(everyone, SMALL, 1, tmp_path).set_index("contender")
    assert list(table.index) == list(everyone) and (table["steps"] == 2).all()
    trained = table["trained_parameters"].drop([cases.RGP, cases.RGP + cases.SECOND])
    assert trained.nunique() == 1 and table["parameters"].nunique() == 1
    assert table.loc[UNIT, "time"] == 1 and (table["start"] > 0).all()


def test_who_skips_work_or_fails_is_no_row():
    whole = {"steps": 2, "tested": 8, "epsilon": 7.9, "delta": 1e-5, "sampling": "poisson"}
    children.require_work("Opacus hooks", whole, SMALL, is_private=True)
    for wrong in ({"steps": 1}, {"tested": 7}, {"delta": 1e-4}, {"sampling": "shuffle"}):
        with pytest.raises(ConfigError, match=f"Expected {next(iter(wrong))} = "):
            children.require_work("Opacus hooks", whole | wrong, SMALL, is_private=True)
    for epsilon in (3.0, 9.0):
        with pytest.raises(ConfigError, match="to spend eps = 8"):
            children.require_work(DP_SGD, whole | {"epsilon": epsilon}, SMALL, is_private=True)
    children.require_work(UNIT, {"steps": 2, "tested": 8}, SMALL, is_private=False)


def test_what_fails_is_told_in_one_line(tmp_path):
    failing = cases.Contender(["-c", "import sys; print('no.', file=sys.stderr); sys.exit(3)"])
    with pytest.raises(ConfigError, match=r"^Expected it to run; got exit code 3, and 'no.'\.$"):
        children.run("it", failing, SMALL, tmp_path)


def test_the_peers_network_is_the_suites():
    torch.manual_seed(0)
    ours = WideResNet(16, 2, 2, "auto", in_channels=3, num_classes=10)
    theirs = wrn.WideResNet(16, 2, 2)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(theirs(x), ours(x))
    for name, weight in wrn.WideResNet(16, 2, 2).named_parameters():
        deviations = weight.std().item(), ours.state_dict()[name].std().item()
        assert deviations[0] == pytest.approx(deviations[1], rel=0.2), name


def test_the_peers_sentence_classifier_is_the_suites(tiny_models):
    theirs = minilm.Classifier(tiny_models / "tiny/bert").eval()
    encoder = transformers.AutoModel.from_pretrained(tiny_models / "tiny/bert")
    encoder.pooler = None
    ours = TextClassifier(encoder, 2, "mean", 1.0, 0.1, 1, 0.0, "float32", False).eval()
    ours.head.out.load_state_dict(theirs.head.state_dict())
    items = [(torch.tensor([2, 7, 5, 3]), 0), (torch.tensor([2, 6, 3]), 1)]
    inputs, labels = sentences.collate(items)
    assert labels.tolist() == [0, 1] and inputs[1].tolist() == [[2, 6, 3, 0], [1, 1, 1, 0]]
    with_segments = torch.cat([inputs, torch.zeros_like(inputs[:, :1])], 1)
    torch.testing.assert_close(theirs(inputs), ours(with_segments))


def recorded():
    """Two rounds of four contenders, the second on a machine half as fast; one not installed."""
    runs_of = {UNIT: (10, 6, 100), DP_SGD: (11, 6.5, 150), "Opacus hooks": (30, 20, 400)}
    private = {"epsilon": 7.99, "delta": 1e-5, "sampling": "poisson"}
    return [
        {
            "round": turn,
            "contender": name,
            "seconds": seconds * (1 + turn),
            "cpu_seconds": 2 * seconds,
            "loop_seconds": loop * (1 + turn),
            "megabytes": megabytes,
            "steps": 8,
            "parameters": 2_753_818,
            "trained_parameters": 2_753_818,
            "accuracy": 20.0 + turn,
            **({} if name == UNIT else private),
        }
        for turn in range(2)
        for name, (seconds, loop, megabytes) in runs_of.items()
    ]


def test_the_page_has_ratios_within_rounds_and_says_who_is_missing(root):
    everyone = cases.language(SMALL, root)
    names = (UNIT, DP_SGD, "Opacus hooks", "absent")
    everyone["absent"] = replace(everyone["Opacus ghost"], needs="no_such_library")
    table = summary({name: everyone[name] for name in names}, recorded())
    text = runs.page(table, runs.CASES["run-language"], Sizes(), "made-up ones", 2, "Here.")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert rows[0] == (f"| {UNIT} | 1.00 |  | 0.40 | 0.60 |  | 1.00 | 8 | 2,753,818 | 20.5 |  |")
    assert rows[1].startswith(f"| {DP_SGD} | 1.10 |  | 0.45 | 0.65 | ≤ 1.15 | 1.50 | 8 |")
    assert rows[1].endswith("| 20.5 | 7.99 |")
    assert rows[3].startswith("| absent | not installed |")
    assert len({row.count("|") for row in rows}) == 1
    assert "DP-SGD takes 0.37 of Opacus hooks" in text and ": 15.0 s" in text
    assert "8 steps of 512 examples" in text and "Made-up ones." in text


@pytest.mark.parametrize(
    "only, chosen",
    [
        ("run", ["run-vision", "run-small", "run-language"]),
        ("run-vision", ["run-vision"]),
        (None, []),
    ],
)
def test_only_run_is_both_cases_and_nothing_else_is(only, chosen):
    words = [] if only is None else ["--only", only]
    assert command.whole(command.read(words).only) == chosen
    assert command.whole(command.read([f"--only={only or 'vision'}"]).only) == chosen


@pytest.mark.parametrize(
    "words, told",
    [
        (["--only", "runs"], "'runs': did you mean 'run'"),
        (["--only=run", "--examples=0"], "--examples to be at least 1; got 0"),
        (["--only=run", "--rounds=few"], "--rounds.*few"),
        (
            ["--only=vision", "--test=10"],
            "beside --only run or run-vision or run-small or run-language",
        ),
        (["--examples", "10"], "beside --only run"),
        (["--only=run", "--device=cuda"], "--device=cpu.*got cuda"),
        (["--onyl=run"], "--onyl=run"),
        (["--only=run", "--examples=9"], "--results beside --examples: .*would replace"),
        (["--only=vision", "--batch=8"], "--results beside --batch"),
    ],
)
def test_wrong_words_are_told_in_one_line(words, told):
    with pytest.raises(ConfigError) as error:
        command.read(words)
    assert re.search(told, str(error.value)) and "\n" not in str(error.value)


@pytest.mark.parametrize("lacking", ["model", "data"])
def test_texts_without_data_or_model_are_refused_in_one_line(lacking, tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_DATA_ROOT", str(tmp_path))
    monkeypatch.setenv("DPEXP_MODEL_ROOT", str(tmp_path / "models"))
    if lacking == "data":
        folder = tmp_path / "models" / examples.MINILM
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    with pytest.raises(ConfigError, match=r"for run-language; found none.*DPEXP_") as error:
        runs.CASES["run-language"].write(tmp_path / "out", 8, 8)
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_more_examples_than_there_are_are_refused(root, tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_DATA_ROOT", str(root))
    told = runs.CASES["run-vision"].write(tmp_path / "part", 10, 4)
    assert told.startswith("10 of train's 24 and 4 of test's 8 examples of uoft-cs/cifar10")
    with pytest.raises(ConfigError, match="at most 24 examples.*got 25. Set --examples"):
        runs.CASES["run-vision"].write(tmp_path / "more", 25, 4)


def test_images_need_no_folder_of_models(root):
    everyone = cases.vision(SMALL, root).values()
    assert not any("model_root" in word for each in everyone for word in each.command)


def test_every_run_of_dpexp_takes_the_peers_batch_steps_and_budget(root):
    for contenders in (cases.vision(SMALL, root), cases.language(SMALL, root)):
        own = {name: each.command for name, each in contenders.items() if each.is_ours}
        assert len(own) == 5
        for name, words in own.items():
            assert {"batch_size=12", "epochs=1", "task.delta=1e-05"} <= set(words)
            assert ("eps=8" in words) == (name != NONPRIVATE)
