"""What every task promises, read from files like its own or made as its YAML says."""

import pytest
import torch
import yaml

from dpexp import cli, records
from dpexp.cli.config_cache import Configs
from dpexp.privacy.certificate import JUDGED_ON_TRAINING, is_judged_on_training
from dpexp.privacy.verification.files import verify_files
from dpexp.privacy.verification.record import verify_record
from dpexp.types import MissingData
from tests.contract.cases import FOLDERS, OWN, TASKS
from tests.images import save_images
from tests.marks import few
from tests.own_data import save_csv, save_folders
from tests.steps import CPU
from tests.texts import save_glue, sentences

CONFIGS = Configs()
FILES = {task: cli.CONF / "task" / f"{task}.yaml" for task in (*TASKS, *OWN)}
SETTINGS = {task: yaml.safe_load(path.read_text()) for task, path in FILES.items()}
SETTINGS |= {task: SETTINGS[task]["task"] for task in OWN}
READ = [task for task in TASKS if "data_root" in SETTINGS[task]]
GLUE = [task for task in TASKS if "text_columns" in SETTINGS[task]]
SEEDS = ("data_seed", "split_seed")
LOANS = "int.rate,installment,fico\n0.1{seed},750,300\n0.2,100,575\n0.3,3000,850\n"


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Nothing that was decoded before is read, and no hub answers."""
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def own(name, root, seed):
    """Write data of someone's own that are not there yet, and return the words that name them."""
    words = [f"data={root}", "dataset_size=4", "task.test_size=3"]
    if name == "images":
        if not root.exists():
            save_folders(root, {"": {"a": 4, "b": 3}}, size=(8 + seed, 8))
        return words
    root.mkdir(exist_ok=True)
    rows = [[text, row + seed / 2, row % 2] for row, text in enumerate(sentences(7, seed))]
    save_csv(root / "all.csv", [["text", "number", "label"], *rows])
    if name == "texts":
        more = ["task.text_columns=[text]", "task.tokenizer=tiny/bert", "task.num_classes=2"]
        return [*words, *more, f"task.max_length={8 + seed}"]
    columns = ["task.columns={number:[0,9]}", "task.target=label", "task.num_classes=2"]
    return [*words, *columns]


@pytest.fixture
def words_of(tmp_path, tiny_models):
    """Return the words of a task of few examples; one that reads files has ones like its own."""

    def words_of(name, seed=0):
        settings, root = SETTINGS[name], tmp_path / f"data{seed}"
        if name in OWN:
            words = own(name, root, seed)
        elif name == "lending_club":
            root.mkdir(exist_ok=True)
            (root / "loans.csv").write_text(LOANS.format(seed=seed))
            words = [f"task.csv={root}/loans.csv", "task.dataset_size=3"]
        elif name not in READ:
            sizes = ("dataset_size", "test_size") if "data_seed" in settings else ()
            words = [f"task.{size}=90" for size in sizes if size in settings]
            words += [f"task.{axis}={seed}" for axis in SEEDS if axis in settings]
        elif "text_columns" in settings:
            tests = settings["test_splits"].values()
            save_glue(root, name, {settings["train_split"]: 20 + seed} | dict.fromkeys(tests, 9))
            words = [f"task.dataset_size={20 + seed}", "task.tokenizer=tiny/bert"]
        else:
            splits = settings["train_splits"]
            counts = dict.fromkeys([*splits, *settings["test_splits"]], 15)
            save_images(root, settings, counts, seed=seed)
            words = [f"task.dataset_size={15 * len(splits)}"]
        where = [f"data_root={root}", f"model_root={tiny_models}"]
        return ["method=dpsgd", f"task={name}", "profile=embedded", *words, *where]

    return words_of


@pytest.fixture
def make(words_of):
    """Make a task of few examples."""
    return lambda name, seed=0: cli.build_task(CONFIGS.compose_anew(words_of(name, seed)), CPU)


@pytest.mark.parametrize("name", [*TASKS, *OWN])
def test_a_task_holds_what_it_declares(name, make):
    task = make(name)
    assert task.name == (f"{name}:data0" if name in OWN else name)
    assert len(task.train) == task.dataset_size
    assert 0 < task.delta == (0.1 if name in OWN else SETTINGS[name]["delta"])
    for part in (task.train, task.test, *task.also.values()):
        count = len(part)
        assert count > 0
        batch, nothing = part.batch(torch.arange(count)), part.batch(torch.arange(0))
        assert len(batch) == count and len(nothing) == len(nothing.inputs) == 0
        *shape, longest = task.input_shape  # texts are cut to the longest of a batch
        assert list(batch.inputs.shape[1:-1]) == shape and batch.inputs.shape[-1] <= longest
        assert batch.inputs.shape[-1] == longest or SETTINGS[name].get("tokenizer")
        if task.num_classes > 1:
            assert batch.targets.dtype == torch.int64
            assert 0 <= batch.targets.min() <= batch.targets.max() < task.num_classes
        else:
            assert batch.targets.is_floating_point()
        pieces = [piece.tolist() for piece in part.micro_batches(torch.arange(count), 4)]
        assert sorted(sum(pieces, [])) == list(range(count))
        assert len(pieces) >= count / 4 or SETTINGS[name].get("tokenizer")
    targets = task.test.batch(torch.arange(len(task.test))).targets
    outputs = torch.zeros(len(targets), task.num_classes)
    assert task.loss(outputs, targets).shape == ()
    assert task.score(outputs, targets).shape == targets.shape


@pytest.mark.parametrize("name", [*TASKS, *OWN])
def test_examples_decide_a_fingerprint_and_nothing_that_trains(name, make):
    """A loss is a sum over examples, and as inputs' mean the config's: no training label's part."""
    task, other = make(name), make(name, seed=1)
    assert make(name).fingerprint == task.fingerprint  # from what was decoded, too
    assert other.fingerprint != task.fingerprint
    gen = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, task.num_classes, generator=gen, dtype=torch.float64)
    is_class = task.num_classes > 1
    targets = torch.arange(7) % task.num_classes if is_class else outputs[:, 0].flip(0)
    one_by_one = zip(outputs.split(1), targets.split(1), strict=True)
    total = sum(float(task.loss(*one)) for one in one_by_one)
    for each in (task, other):
        assert float(each.loss(outputs, targets)) == pytest.approx(total, rel=1e-9)
    constants = [
        (getattr(t.train, "mean", None), getattr(t.train, "std", None)) for t in (task, other)
    ]
    assert constants[0] == constants[1]


@pytest.mark.parametrize("name", [*TASKS, *OWN])
def test_a_config_tells_whether_the_metric_is_of_the_training_set(name, words_of):
    """A certificate says so where it is, and verification has the config alone."""
    config = CONFIGS.compose_anew(words_of(name))
    task = cli.build_task(config, CPU)
    assert is_judged_on_training(config) is (task.test is task.train)


RUN = [*TASKS, *OWN]
# Of each way to its examples one: images and texts that are read, made ones, numbers, one's own.
RUN_IN_SHORT = ("sst2", "shapes", "regression", *OWN)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUN if FOLDERS else few(RUN, RUN_IN_SHORT))
def test_a_run_verifies_and_not_without_what_it_must_say_of_its_metric(name, words_of, tmp_path):
    shape = ["batch_size=3", "epochs=1", "eps=8", "privacy.delta=0.01", "device=cpu"]
    model = ["model=bert_tiny"] if "tokenizer" in SETTINGS[name] else ["model=linear"]
    if name in (*GLUE, "texts"):
        model = ["model=minilm", "model.repo=tiny/bert", "task.tokenizer=tiny/bert"]
        model += ["task.max_length=8"]
    words = [*words_of(name), *shape, *model, f"results={tmp_path}/results"]
    (tmp_path / "data0").mkdir(exist_ok=True)  # where the task reads nothing
    directory = cli.execute(CONFIGS.compose_anew(words))
    record = records.read(directory)
    assert verify_record(record).findings == ()
    said = JUDGED_ON_TRAINING in record.privacy["deviations"]
    assert said is (name in ("lending_club", "regression"))
    others = [word for word in record.privacy["deviations"] if word != JUDGED_ON_TRAINING]
    others += [] if said else [JUDGED_ON_TRAINING]
    privacy = {**record.privacy, "deviations": others}
    findings = verify_files(record.config, record.result, privacy).findings
    assert findings == (f"deviations: '{JUDGED_ON_TRAINING}' is {'missing' if said else 'not so'}",)


@pytest.mark.parametrize("name", READ)
def test_data_that_are_not_there_are_one_line_that_says_where(name, tmp_path, tiny_models):
    words = ["method=dpsgd", f"task={name}", "profile=embedded", f"data_root={tmp_path}/none"]
    if "tokenizer" in SETTINGS[name]:
        words += ["task.tokenizer=tiny/bert", f"model_root={tiny_models}"]
    with pytest.raises(MissingData, match=f"{tmp_path}/none") as raised:
        cli.build_task(CONFIGS.compose_anew(words), CPU)
    assert "\n" not in str(raised.value)
