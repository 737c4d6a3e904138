"""A run keeps its model, and who has the folder alone can use it."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import dpexp
from dpexp import records
from dpexp.cli import composition, predict
from dpexp.cli.parts import build_parts, build_task
from dpexp.cli.verify import verify
from dpexp.records import weights
from dpexp.records.keeping import WEIGHTS
from dpexp.types import ConfigError
from tests.marks import pairs_long, some_long
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.texts import LONGEST, save_glue, save_model

SHORT = "profile=embedded eps=8 epochs=0.1 device=cpu"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run of an image task; its directory is somewhere else than where it was made."""
    folder = tmp_path_factory.mktemp("made")
    made = dpexp.run(f"method=dpsgd task=digits {SHORT} results={folder}").directory
    moved = tmp_path_factory.mktemp("moved") / made.name
    shutil.move(made, moved)
    return moved


@pytest.fixture
def copied(digits, tmp_path):
    return shutil.copytree(digits, tmp_path / digits.name)


def test_what_is_loaded_is_what_was_trained(digits):
    model = dpexp.load(digits)
    result = model.record.result
    assert weights.digest(model.module.state_dict()) == result["weights_sha256"]
    assert not model.module.training
    task = build_parts(model.record.config, torch.device("cpu")).task
    raw = (255 * task.test.inputs).round().to(torch.uint8)
    guesses = model.predict(raw)
    right = [int(g.label) == int(t) for g, t in zip(guesses, task.test.targets, strict=True)]
    # Pixels in 256 steps instead of 17 may change a few of 360.
    assert abs(100 * sum(right) / len(right) - result["test_accuracy"]) < 1.5
    assert all(0 < guess.probability <= 1 for guess in guesses)


def test_a_picture_a_path_bytes_and_a_tensor_are_one_input(digits, tmp_path):
    model = dpexp.load(digits)
    pixels = torch.randint(256, (1, 8, 8), dtype=torch.uint8)
    picture = Image.fromarray(pixels[0].numpy())
    path = tmp_path / "a digit ε.PNG"
    picture.save(path)
    outputs = [model.outputs(raw) for raw in ([path], [str(path)], [picture], [path.read_bytes()])]
    outputs += [model.outputs(raw) for raw in ([pixels], [pixels.numpy()], pixels[None].numpy())]
    assert all(torch.equal(one, outputs[0]) for one in outputs)
    torch.testing.assert_close(model.outputs([pixels.float() / 255]), outputs[0])
    assert model.outputs([]).shape == (0, 10) and model.predict([]) == []


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ([torch.zeros(1, 8, 9)], r"shape \[n, 1, 8, 8\]"),
        ([torch.zeros(1, 8, 8), torch.zeros(1, 8, 9)], r"shape \[n, 1, 8, 8\]; got \[2, 1, 8, 9\]"),
        (torch.zeros(2, 8, 8), r"got \[2, 8, 8\]"),
        ("a.png", "a list of inputs; got a single str"),
        (Path("a.png"), "got a single PosixPath"),
        (Image.new("L", (8, 8)), "got a single Image"),
        (b"no image", "got a single bytes"),
        ({"a": 1}, "got a single dict"),
        ([torch.full((1, 8, 8), 3.0)], r"floats in \[0, 1\]"),
        ([torch.full((1, 8, 8), float("nan"))], r"floats in \[0, 1\]"),
        ([torch.zeros(1, 8, 8, dtype=torch.int64)], "uint8"),
        (["/no/such/file.png"], "/no/such/file.png"),
        ([b"no image"], "image 0"),
        ([{"a": 1}], "image 0 as a path"),
    ],
)
def test_an_input_that_does_not_fit_is_named_on_one_line(digits, raw, line):
    with pytest.raises(ConfigError, match=line) as refused:
        dpexp.load(digits).predict(raw)
    assert "\n" not in str(refused.value)


def test_the_command_prints_a_line_for_every_image(digits, tmp_path, capsys):
    for name in ("b.png", "a.png", ".hidden.png"):
        Image.new("L", (8, 8), 7).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    assert predict.main([str(digits), str(tmp_path), str(tmp_path / "b.png")]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "input,prediction,probability"
    names = [line.split(",")[0].rpartition("/")[2] for line in lines]
    assert names == ["a.png", "b.png", "b.png"]
    assert len({line.split(",", 1)[1] for line in lines}) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{run}"], "Expected FILES"),
        (["{run}", "/no/such.png"], "/no/such.png"),
        (["{run}", "{empty}"], "holds none"),
        (["{empty}", "x.png"], "finished run"),
        (["{run}", "x.png", "trust=maybe"], "trust=true or trust=false"),
    ],
)
def test_a_mistake_prints_one_line_and_no_csv(digits, tmp_path, capsys, words, line):
    words = [word.format(run=digits, empty=tmp_path) for word in words]
    assert predict.main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and line in err and err.count("\n") == 1


def test_weights_that_are_not_the_runs_are_refused_and_found_by_verify(copied):
    assert verify(copied)[0] == 0
    state = weights.read(copied / WEIGHTS)
    name = next(iter(state))
    weights.write(copied / WEIGHTS, state | {name: state[name] + 1e-3})
    with pytest.raises(ConfigError, match="weights_sha256"):
        dpexp.load(copied)
    code, lines = verify(copied)
    assert code == 1 and any("weights_sha256" in line for line in lines)


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_torn_file_of_weights_is_one_line(copied, keep):
    path = copied / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        dpexp.load(copied)
    assert "\n" not in str(refused.value)
    assert verify(copied)[0] == 1


@pytest.mark.parametrize("kind", ["twice", "shared", "unnamed"])
def test_no_tensor_stands_beside_the_certified_one_under_its_name(kind, copied):
    """Other programs read the file by its own names, and would take the one beside it."""
    path = copied / WEIGHTS
    with safe_open(path, framework="pt") as file:
        names, shared = (
            json.loads(file.metadata()[key]) for key in ("dpexp.names", "dpexp.shared")
        )
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    first = next(iter(stored))
    if kind == "twice":
        stored, names = (
            {f"zz.{first}": stored[first]} | stored,
            {f"zz.{first}": names[first]} | names,
        )
        stored[first] = torch.zeros_like(stored[first])
    elif kind == "shared":
        shared[names[first]] = names[[*stored][1]]
    else:
        stored["other"] = torch.zeros(2)
    said = {"dpexp.names": json.dumps(names), "dpexp.shared": json.dumps(shared)}
    save_file(stored, path, metadata={"format": "pt"} | said)
    with pytest.raises(ConfigError, match="two tensors of one name, or one of none"):
        weights.read(path)
    assert verify(copied)[0] == 1


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"kind": "smells"}', '{"kind": "images", "classes": 3}']
)
def test_a_damaged_preprocessing_is_one_line(copied, content):
    (copied / "preprocessing.json").write_text(content)
    result = json.loads((copied / "result.json").read_text())
    sha = hashlib.sha256(content.encode()).hexdigest()
    for held in (result, {**result, "kept_files": {"preprocessing.json": sha}}):
        (copied / "result.json").write_text(json.dumps(held))
        with pytest.raises(ConfigError, match="preprocessing.json"):
            dpexp.load(copied)


def test_a_model_whose_classes_change_names_is_refused_and_found_by_verify(copied):
    path = copied / "preprocessing.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"classes": said["classes"][::-1]}))
    with pytest.raises(ConfigError, match="preprocessing.json does not match its hash"):
        dpexp.load(copied)
    assert verify(copied)[0] == 1
    path.unlink()
    with pytest.raises(ConfigError, match="preprocessing.json: missing"):
        dpexp.load(copied)
    assert verify(copied)[0] == 1
    (copied / WEIGHTS).unlink()  # a record is whole without its model
    assert verify(copied)[0] == 0


@pytest.mark.parametrize("name", ["../out.json", "/etc/hostname", "", "nothing.json"])
def test_no_hash_is_of_a_file_elsewhere(copied, name):
    (copied.parent / "out.json").write_text("{}")
    result = json.loads((copied / "result.json").read_text())
    result["kept_files"][name] = hashlib.sha256(b"{}").hexdigest()
    (copied / "result.json").write_text(json.dumps(result))
    code, lines = verify(copied)
    assert code == 1 and any("kept_files" in line or "nothing.json" in line for line in lines)


def test_a_folder_that_calls_other_code_is_not_trusted(copied):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["model"] = {"_target_": "os.mkdir", "name": "wrn10_1", "path": str(copied / "made")}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match="trust=True"):
        dpexp.load(copied)
    assert not (copied / "made").exists()


def test_a_table_keeps_no_models_and_a_look_up_says_so(digits, tmp_path, programs):
    words = f"method=dpsgd task=digits {SHORT} results={tmp_path}"
    config = composition.compose(words.split())
    assert config["weights"] == "auto"
    assert records.run_id(config) == digits.name
    run = dpexp.run(words, "weights=discard")
    assert not {"model.safetensors", "README.md"} & {path.name for path in run.directory.iterdir()}
    with pytest.raises(ConfigError, match="kept its model"):
        _ = run.model
    done = programs.run(["run.py", *words.split()])
    assert done.returncode == 0 and "keeps its model, which this record lacks" in done.stderr


def test_the_card_says_what_the_claim_covers(digits):
    card = (digits / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "dpexp"
    certificate = json.loads((digits / "privacy.json").read_text())
    assert f"({certificate['target_epsilon']:g}, {certificate['delta']:g})" in body
    assert "seed" in body and certificate["neighbouring"] in body
    assert dpexp.load(digits).record.result["weights_sha256"] in body


def test_a_card_of_a_run_without_noise_claims_nothing(tmp_path):
    words = SHORT.replace("eps=8", "eps=null noise=false clip=false")
    run = dpexp.run(f"method=dpsgd task=digits {words} results={tmp_path}")
    card = (run.directory / "README.md").read_text(encoding="utf-8")
    why = "No privacy is claimed: no noise: no privacy; no clipping: no privacy."
    assert why in card and "deviation: " in card and "differentially private (" not in card
    assert run.epsilon is None


@pytest.mark.parametrize(("noise", "is_told"), [("true", True), ("secret", False)])
def test_a_card_of_private_data_names_no_fingerprint(noise, is_told, tmp_path):
    words = f"method=dpsgd task=digits {SHORT} results={tmp_path} noise={noise}"
    run = dpexp.run(words)
    card = (run.directory / "README.md").read_text(encoding="utf-8")
    result = json.loads((run.directory / "result.json").read_text())
    assert (result["data_fingerprint"] in card) == ("fingerprint" in card) == is_told


@pytest.mark.parametrize("task", some_long(["sentiment", "entailment"], []))
def test_texts_go_through_the_kept_vocabulary(task, tmp_path, capsys):
    run = dpexp.run(f"method=dpsgd task={task} {SHORT.replace('0.1', '0.02')} results={tmp_path}")
    model = dpexp.load(run.directory)
    texts = build_parts(model.record.config, torch.device("cpu")).task.test
    words = model.preprocessing.tokenizer.words
    rows = texts.take(torch.arange(20))
    ids, lengths, seconds = rows.encoded
    raw = []
    for row, length, second in zip(ids.tolist(), lengths.tolist(), seconds.tolist(), strict=True):
        first = " ".join(words[i] for i in row[1 : min(second, length) - 1])
        other = " ".join(words[i] for i in row[second : length - 1])
        raw.append((first, other) if second < length else first)
    expected = run.model(rows.batch(torch.arange(20)).inputs)
    torch.testing.assert_close(model.outputs(raw), expected.detach())
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(one if isinstance(one, str) else "\t".join(one) for one in raw))
    assert predict.main([str(run.directory), str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 20 and lines[4].startswith(f"{path}:5,")
    assert {line.split(",")[1] for line in lines} <= {*model.classes}
    with pytest.raises(ConfigError, match="xylophone"):
        model.predict(["xylophone"] if isinstance(raw[0], str) else [("xylophone", "a")])


class Tied(nn.Module):
    """Two names for one tensor, a view of another, a buffer, an empty parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("view", self.first.bias.detach()[:2])
        self.register_buffer("count", torch.tensor(3))
        self.nothing, self.none = (nn.Parameter(torch.empty(0)) for _ in range(2))
        self.short = nn.Parameter(torch.randn(4, 5, dtype=torch.bfloat16).t())


def test_every_kind_of_tensor_comes_back_with_its_bits(tmp_path):
    state = Tied().state_dict()
    path = tmp_path / "model.safetensors"
    weights.write(path, state, lambda name: f"library.{name}")
    found = weights.read(path)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert weights.digest(found) == weights.digest(state)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Models and sentences in the hub's layout, small and random."""
    root = tmp_path_factory.mktemp("hub")
    for architecture in ("bert", "roberta"):
        save_model(root, architecture)
    save_glue(root, "sst2", {"train": 40, "validation": 12})
    return root


@pytest.mark.parametrize(
    ("pooling", "kind"),
    pairs_long(
        ["first", "mean"],
        ["bert", "roberta"],
        short=lambda pooling, kind: (pooling, kind) == ("first", "bert"),
    ),
)
def test_transformers_loads_the_folder(kind, pooling, hub, tmp_path):
    words = (
        f"method=dpsgd model={kind} model.repo=tiny/{kind} task=sst2 eps=8 epochs=0.5 "
        f"batch_size=10 device=cpu task.dataset_size=40 task.max_length={LONGEST} "
        f"model.pooling={pooling} data_root={hub} model_root={hub} results={tmp_path}"
    )
    run = dpexp.run(words)
    folder = shutil.copytree(run.directory, tmp_path / "elsewhere")
    model = dpexp.load(folder)
    raw = ["good", "bad bad film", "a good film of a bad day"]
    expected = model.outputs(raw)
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(
        raw, padding=True, return_tensors="pt"
    )
    if pooling == "first":
        whole = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        with torch.no_grad():
            found = whole(**tokens).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert [*whole.config.id2label.values()] == ["negative", "positive"]
    else:
        encoder = transformers.AutoModel.from_pretrained(folder).eval()
        ours = model.module.encoder.state_dict()
        theirs = encoder.state_dict()
        assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_features_are_made_again_by_their_encoder(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = transformers.ViTConfig(**sizes, intermediate_size=32, image_size=16, patch_size=4)
    transformers.ViTModel(config).save_pretrained(tmp_path / "someone" / "vit")
    words = "features=hub features.encoder=someone/vit features.image_size=16"
    run = dpexp.run(
        f"method=dpsgd task=digits {SHORT} {words} model_root={tmp_path} results={tmp_path}"
    )
    model = dpexp.load(run.directory)
    images = build_task({"task": model.record.config["task"]}, torch.device("cpu")).test.inputs
    features = build_parts(model.record.config, torch.device("cpu")).task.test
    expected = run.model(features.batch(torch.arange(len(images))).inputs).detach()
    torch.testing.assert_close(model.outputs(images), expected)
