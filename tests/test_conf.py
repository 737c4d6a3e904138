"""The config tree: everything in it composes, and says all that the code wants to know."""

import inspect
import re
from itertools import product

import hydra
import pytest
import yaml

from dpexp import cli, records
from dpexp.cli import blocks
from dpexp.cli.building import DOORS
from dpexp.cli.config_cache import Configs
from dpexp.cli.errors import NONE
from dpexp.privacy import num_steps
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from dpexp.reporting.schema.kinds import OneEach
from tests import pinned_configs
from tests.contract.cases import OWN
from tests.marks import few, some_long

PINNED = set(pinned_configs.PINNED.read_text(encoding="utf-8").splitlines())


@pytest.fixture(autouse=True)
def _anywhere(monkeypatch):
    """Take runs as they are on a machine that says nothing of where its data lie."""
    for root in pinned_configs.ROOTS:
        monkeypatch.delenv(root, raising=False)


CONFIGS = Configs()  # a tree of conf that was composed before need not be again
GROUPS = ("method", "model", "profile", "task")
METHODS, MODELS, PROFILES, TASKS = (
    sorted(path.stem for path in (cli.CONF / group).glob("*.yaml") if path.stem != "auto")
    for group in GROUPS
)
KEPT = ("embedded", "quick")
"""The profiles of which results/ has most runs."""
TASKS = [task for task in TASKS if task not in OWN]  # which have no run without data
MODELS = [name for name in MODELS if name not in DOORS]  # whose model is to be named
ATTACKS, AUDITS, PROMPTS, WARM_STARTS, ANALYSES, OPTIMIZERS, SCHEDULES = (
    sorted(path.stem for path in (cli.CONF / group).glob("*.yaml") if path.stem != "none")
    for group in ("attack", "audit", "prompts", "warm_start", "analysis", "optimizer", "schedule")
)
FEATURES = sorted({path.stem for path in (cli.CONF / "features").glob("*.yaml")} - {"none"})
ARTIFACTS = sorted((cli.CONF / "artifact").glob("*/*.yaml"))
SOME = [
    cli.CONF / "artifact" / f"{name}.yaml"
    for name in (
        *("compressive/figure1", "dpexp/figure1", "dpexp/table1", "dpexp/table3"),
        *("gep/figure2", "gep/figure4", "gep/figure5", "gep/table4", "gep/table5"),
        *("lsg/figure1", "lsg/figure5", "lsg/table1"),
        *("rgp/figure3", "rgp/figure6", "rgp/table3", "rgp/table4"),
    )
]
"""Artifacts of every paper and every kind, of which few have many cells."""
IS_LONG = [False, pytest.param(True, marks=pytest.mark.long)]
RUNTIME = {"in_channels", "image_size", "input_shape", "num_classes", "params", "task", "device"}
RUNTIME |= {"max_length", "model"}
"""What run.py adds: it is known once the task and the model are there."""
SAID_ALONE = {"embeddings", "GEP.every"}
"""Settings, some of one class, that a config holds only where said, so that other runs keep ids."""
LABELS = {group: {"_target_", "name"} for group in ("method", "attack", "audit", "holdout")}
LABELS["model"] = {"_target_", "name", "head", "tokenizer"}
"""What is said for others than the constructor."""


def check_settings(group, node):
    """Hold settings against the signature of what they are for."""
    target = hydra.utils.get_object(node["_target_"])
    takes = inspect.signature(target).parameters
    said = set(node) - LABELS.get(group, {"_target_"})
    said |= {"head"} & set(node) & set(takes)
    assert said <= set(takes)
    ours = node["_target_"].startswith("dpexp.")
    required = {name for name, one in takes.items() if one.default is inspect.Parameter.empty}
    assert required - RUNTIME <= said
    if ours:  # a second default in Python would be one that nobody sees
        alone = {name for name in takes if {name, f"{target.__name__}.{name}"} & SAID_ALONE}
        assert required >= set(takes) - RUNTIME - alone


def leaves_its_warm_up(config):
    """Return whether RGP gets to decompose its updates, which is what sets it apart."""
    size, batch = config["task"]["dataset_size"], config["batch_size"]
    steps = num_steps(config["epochs"], size, batch, config["privacy"]["sampling"])
    return config["method"].get("warm_up_steps", 0) < steps


def linked_runs(profile, path):
    """List the records, each with its seed, that an artifact links where it was made."""
    results = cli.CONF.parent / "results" / profile
    made = results / path.parent.name / f"{path.stem}.md"
    names = set(re.findall(r"runs/(\w+)/", made.read_text("utf-8"))) if made.exists() else ()
    configs = {name: (results / "runs" / name / "config.yaml").read_text("utf-8") for name in names}
    return [(name, yaml.load(config, OneEach)["seed"]) for name, config in configs.items()]


@pytest.mark.parametrize("is_long", IS_LONG)
@pytest.mark.parametrize(
    "path", few(ARTIFACTS, SOME), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_cell_is_the_run_that_it_was(path, is_long):
    """In the profile that the next test composes, too; at length in all."""
    profiles = PROFILES if is_long else [KEPT[ARTIFACTS.index(path) % len(KEPT)]]
    begin = tuple(f"{path.parent.name}/{path.stem} {profile} " for profile in profiles)
    was = {line for line in PINNED if line.startswith(begin)}
    assert set(pinned_configs.of_artifact(CONFIGS.compose, path, profiles)) == was


@pytest.mark.parametrize("is_long", IS_LONG)
@pytest.mark.parametrize("method", METHODS)
def test_every_choice_of_method_and_task_is_the_run_that_it_was(method, is_long):
    """A fifth of the tasks in one profile, in turn; half at length. `make pin-configs` has all."""
    turn, step = METHODS.index(method), 2 if is_long else 5
    for index, task in list(enumerate(TASKS))[turn % step :: step]:
        profile = PROFILES[(index + turn) // step % len(PROFILES)]
        assert pinned_configs.of_choice(CONFIGS.compose, method, task, profile) in PINNED


@pytest.mark.parametrize("is_long", IS_LONG)
@pytest.mark.parametrize(
    "path", few(ARTIFACTS, SOME), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_cell_composes_to_a_run_of_its_own_and_seeds_differ_in_the_seed_alone(path, is_long):
    """In one of the profiles whose runs are kept, in turn; at length in all."""
    table = spec.load(cli.CONF, path.parent.name, path.stem)
    assert set(PROFILES) - {"short"} <= set(table.profiles) <= set(PROFILES)
    for profile in sorted(table.profiles) if is_long else [KEPT[ARTIFACTS.index(path) % len(KEPT)]]:
        jobs = cells.expand(table, profile, CONFIGS.compose, cli.CONF, seeds=(0, 1))
        built = [job for job in jobs if not job.not_built]
        # Several lines may show several series of one run, whose words are then the same.
        asked = {job.overrides for job in built}
        assert len({job.run_id for job in built}) == len(asked) > 0
        assert all(job.config["profile"]["name"] == profile for job in built)
        within = {job.cell[1] for job in built if not leaves_its_warm_up(job.config)}
        assert not within or "all of its warm-up" in table.profiles[profile].scaled
        prompted = [job.config["model"] for job in built if job.config.get("prompts")]
        assert all(model["head_layers"] == 1 for model in prompted)  # others are refused
        assert built[-1].seed == 1
        # All profiles are composed by the same means, of which one shows that it is Hydra's.
        assert profile != KEPT[-1] or built[-1].config == cli.compose(built[-1].overrides)
        # A setting that is added or changed must not leave behind what was made before it.
        linked = linked_runs(profile, path)
        assert all(seed > 1 for name, seed in linked if name not in {job.run_id for job in built})


@pytest.mark.parametrize("profile", some_long(PROFILES, ["embedded"]))
def test_every_task_has_a_default_model_and_recipe_in_every_profile(profile):
    for task in TASKS:
        config = CONFIGS.compose(["method=rgp", f"task={task}", f"profile={profile}"])
        assert config["model"]["name"] in MODELS
        assert (config["task"]["name"], config["profile"]["name"]) == (task, profile)
        # Naming that model is the same run as leaving it out.
        named = [f"task={task}", f"profile={profile}", f"model={config['model']['name']}"]
        assert CONFIGS.compose(["method=rgp", *named]) == config


@pytest.mark.parametrize("is_long", IS_LONG)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_composes_with_models(method, is_long):
    """With an eighth of them, in turn: a method's settings do not depend on a model by name."""
    step = 3 if is_long else 8
    for model in MODELS[METHODS.index(method) % step :: step]:
        config = CONFIGS.compose([f"method={method}", "task=cifar10", f"model={model}"])
        assert (config["method"]["name"], config["model"]["name"]) == (method, model)
        if "loop" not in config:  # a loop of its own has no head to leave out
            head = "head.out" if (method, model) == ("linear", "bert") else config["model"]["head"]
            assert config["method"]["head"] == head
        for group in ("optimizer", "schedule"):  # recipes write there
            assert None not in config[group].values()
            check_settings(group, config[group])
        check_settings("method", config["method"])


@pytest.mark.parametrize("is_long", IS_LONG)
@pytest.mark.parametrize(("turn", "method"), [*enumerate(["gep", "compressive", "lsg"])])
def test_a_task_composes_with_methods_that_choose_by_it(turn, method, is_long):
    """One takes the task's public examples, one another model; one has a recipe for texts."""
    for task in TASKS if is_long else TASKS[turn::3]:
        assert CONFIGS.compose([f"method={method}", f"task={task}"])["task"]["name"] == task


def settings():
    """List every option that is settings with a _target_, and the words that choose it."""
    base = {"method": "rgp", "model": "wrn10_1", "task": "digits"}
    for group, options in (("method", METHODS), ("model", MODELS), ("task", TASKS)):
        for option in options:
            words = [f"{key}={value}" for key, value in {**base, group: option}.items()]
            yield group, option, words
    for option in FEATURES:
        words = ["method=dpsgd", "task=cifar10", f"features={option}", "features.encoder=some/one"]
        yield "features", option, words
    for group, option in (*product(["attack"], ATTACKS), *product(["audit"], AUDITS)):
        words = ["method=dpsgd", "task=digits", "model=wrn10_1", f"{group}={option}"]
        yield group, option, words
    for option in ANALYSES:
        # One that is of a method takes its settings from there.
        words = ["method=compressive", "task=digits", f"analysis={option}"]
        if "\nparameter: ???" in (cli.CONF / "analysis" / f"{option}.yaml").read_text():
            words.append(f"analysis.{option}.parameter=stem.weight")
        yield "analysis", option, words
    for option in PROMPTS:
        yield "prompts", option, ["method=bitfit", "task=sst2", "model=minilm", f"prompts={option}"]
    for option in OPTIMIZERS:
        words = ["method=dpsgd", "task=digits", f"optimizer={option}", "optimizer.lr=1"]
        yield "optimizer", option, words
    for option in SCHEDULES:
        yield "schedule", option, ["method=dpsgd", "task=digits", f"schedule={option}"]
    yield "holdout", "train", ["method=dpsgd", "task=digits", "holdout=train", "holdout.size=9"]
    for option in WARM_STARTS:
        yield "warm_start", option, ["method=dpsgd", "task=sentiment", f"warm_start={option}"]


@pytest.mark.parametrize(
    ("group", "option", "words"),
    [pytest.param(*one, id=f"{one[0]}-{one[1]}") for one in settings()],
)
def test_settings_are_exactly_what_the_constructor_takes(group, option, words):
    node = CONFIGS.compose(words)[group]
    check_settings(group, node[option] if group == "analysis" else node)


def test_recipes_and_scales_set_only_what_is_there():
    """A key that is misspelt in a recipe would otherwise be a new setting that nothing reads."""
    known = set(CONFIGS.compose(["method=rgp", "task=digits"]))
    hosts = {"recipe": (MODELS, METHODS), "scale": (PROFILES, [*METHODS, *TASKS])}
    for path in blocks.files():
        assert path.read_text().startswith(("# Where ", "# How ")), path  # it says of what it is
        stems, options = hosts[path.parent.name]
        assert path.stem in stems, path
        named = [name for name, _ in blocks.of(path)]
        assert len(named) == len({*named}) and {*named} <= {*options}, path
        for _, settings in blocks.of(path):
            assert set(settings) <= known, path


def test_a_block_is_an_option_of_its_group():
    config = CONFIGS.compose(["method=rgp", "task=sst2", "model=minilm", "profile=quick"])
    block = dict(blocks.of(cli.CONF / "recipe" / "minilm.yaml"))["rgp"]
    assert config["method"] | dict(block.method) == config["method"]
    assert config["optimizer"] | dict(block.optimizer) == config["optimizer"]


def test_a_model_of_ones_own_needs_no_more_than_a_file_and_may_have_recipes(tmp_path):
    """Optimizer and schedule are then those that a network here has which names none."""
    target = "_target_: dpexp.models.linear.Linear\nname: mine\nhead: head\n"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(target)
    words = ["task=digits", "model=mine", f"hydra.searchpath=[file://{tmp_path}]"]
    mine = cli.compose(["method=rgp", *words])
    ours = cli.compose(["method=rgp", "task=digits", "model=wrn28_4", "optimizer.lr=0.1"])
    assert (mine["optimizer"], mine["schedule"]) == (ours["optimizer"], ours["schedule"])
    (tmp_path / "recipe" / "mine").mkdir(parents=True)
    (tmp_path / "recipe" / "mine" / "rgp.yaml").write_text("# @package _global_\nepochs: 7\n")
    assert cli.compose(["method=rgp", *words])["epochs"] == 7
    assert cli.compose(["method=lsg", *words])["epochs"] == 200
    (tmp_path / "model" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [override /optimizer: adam]\n"
        f"model: {{{target.strip().replace(chr(10), ', ')}}}\n"
    )
    assert cli.compose(["method=rgp", *words])["optimizer"]["_target_"] == "torch.optim.Adam"


def test_table_3_in_the_paper_profile_is_the_published_setting():
    """Yu et al. 2021, Section 5.1."""
    table = spec.load(cli.CONF, "rgp", "table3")
    jobs = cells.expand(table, "paper", CONFIGS.compose, cli.CONF, seeds=(0,))
    assert len(jobs) == 12
    for job in jobs:
        config = job.config
        assert (config["model"]["name"], config["batch_size"]) == ("wrn28_4", 1000)
        assert (config["epochs"], config["optimizer"]["momentum"]) == (200, 0.9)
        assert config["optimizer"]["weight_decay"] == 1e-4
        assert config["privacy"]["delta"] == {"cifar10": 1e-5, "svhn": 1e-6}[config["task"]["name"]]
        assert (config["noise"], config["clip"], config["sampling"]) == (True, True, "poisson")
        if config["method"]["name"] == "rgp":
            assert (config["method"]["rank"], config["method"]["power_iterations"]) == (16, 1)
    assert {job.config["eps"] for job in jobs} == {2, 4, 6}


def test_rgp_on_wrn28_10_is_the_released_code_s_and_on_wrn28_4_the_paper_s():
    code, paper = (
        CONFIGS.compose(["method=rgp", "task=cifar10", f"model={model}", "eps=8"])
        for model in ("wrn28_10", "wrn28_4")
    )
    chosen = ("rank", "carriers", "decompose", "head_factor")
    assert [code["method"][name] for name in chosen] == [16, "left", "weight", 0.01]
    assert [paper["method"][name] for name in chosen] == [16, "both", "update", 0.01]
    assert (code["epochs"], code["optimizer"]["lr"], code["batch_size"]) == (400, 0.5, 1000)
    assert code["schedule"] == paper["schedule"] and code["privacy"] == paper["privacy"]


SHORT = [path for path in ARTIFACTS if "\n  short:" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize(
    "path",
    few(SHORT, [path for path in SOME if path in SHORT]),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_the_short_profile_is_the_published_setting_but_for_epochs_and_warm_up(path):
    table = spec.load(cli.CONF, path.parent.name, path.stem)
    long, short = (
        {
            job.cell: job.config
            for job in cells.expand(table, name, CONFIGS.compose, cli.CONF, (), (0,))
        }
        for name in ("paper", "short")
    )
    assert short and short.keys() <= long.keys()
    for cell, config in short.items():
        published = long[cell]
        assert 0 < config["epochs"] < published["epochs"]
        if "warm_up_steps" in config["method"]:
            published["method"]["warm_up_steps"] = config["method"]["warm_up_steps"]
        free = dict.fromkeys(("epochs", "profile"))
        assert {**config, **free} == {**published, **free}, cell


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Yu et al. 2021, Section 5.2 (rgp): 50 epochs for eps > 2, else 20.
        (["model=bert", "task=sst2"], {1: 20, 2: 20, 4: 50, 8: 50, None: 50}),
        # Yu et al. 2021, Section 4 (gep).
        (["model=resnet20", "task=cifar10"], {2: 50, 5: 100, 8: 200, None: 200}),
        (["model=cnn", "task=mnist"], {2: 50, 5: 100, 8: 200}),
    ],
    ids=["bert", "resnet20", "cnn"],
)
def test_published_epochs_follow_epsilon(words, expected):
    for eps, epochs in expected.items():
        off = ["noise=false"] if eps is None else []
        chosen = [f"eps={'null' if eps is None else eps}", *off]
        assert CONFIGS.compose(["method=dpsgd", *words, *chosen])["epochs"] == epochs


def with_rates():
    """List the artifacts whose rows or columns say a learning rate, each with those words."""
    for path in ARTIFACTS:
        raw = yaml.load(path.read_text(encoding="utf-8"), OneEach)
        lines = (*raw["rows"], *raw["columns"])
        said = [str(word) for line in lines for word in line.get("overrides", [])]
        if rates := {word for word in said if re.match(r"optimizer\.lr=[\d.]", word)}:
            yield pytest.param(raw, rates, id=f"{path.parent.name}-{path.stem}")


@pytest.mark.parametrize(("raw", "rates"), [*with_rates()])
def test_a_learning_rate_for_the_paper_s_network_reaches_no_smaller_one_unsaid(raw, rates):
    for profile in set(PROFILES) - {"paper", "short"}:
        assert rates <= set(raw["profiles"][profile].get("replace", {})), profile


def test_the_place_of_data_and_the_way_of_running_do_not_name_a_run():
    base = ["method=rgp", "task=svhn"]
    words = ["data_root=/elsewhere", "micro_batch=7", "device=cpu", "ranks=2", "results=there"]
    words += ["wandb.mode=offline", "checkpoint.seconds=1"]
    assert records.run_id(CONFIGS.compose([*base, *words])) == records.run_id(CONFIGS.compose(base))
    for word in ("eps=7", "seed=1", "method.rank=8", "task.delta=1e-7", "sampling=shuffle"):
        assert records.run_id(CONFIGS.compose([*base, word])) != records.run_id(
            CONFIGS.compose(base)
        )


@pytest.mark.parametrize("option", FEATURES)
def test_features_are_for_a_linear_model_unless_another_is_named(option):
    words = ["method=dpsgd", "task=cifar10", f"features={option}", "features.encoder=some/one"]
    assert CONFIGS.compose(words)["model"]["name"] == "linear"
    assert CONFIGS.compose([*words, "model=cnn"])["model"]["name"] == "cnn"
    moved = CONFIGS.compose([*words, "model_root=/elsewhere"])
    assert records.run_id(moved) == records.run_id(CONFIGS.compose(words))


def test_compressive_is_for_a_linear_model_unless_another_is_named():
    """And it runs the published setting where the data are the paper's (Section 4)."""
    config = CONFIGS.compose(["method=compressive", "task=lending_club", "task.csv=/a/file.csv"])
    assert config["model"]["name"] == "linear"
    assert (config["batch_size"], config["epochs"]) == (config["task"]["dataset_size"], 999)
    assert (config["method"]["kappa"], config["method"]["p"]) == (5, 20)
    assert (config["optimizer"]["lr"], config["optimizer"]["momentum"]) == (0.1, 0)
    assert config["schedule"]["_target_"] == "dpexp.training.schedules.InverseRoot"
    elsewhere = ["method=compressive", "task=lending_club", "task.csv=/another/file.csv"]
    assert records.run_id(CONFIGS.compose(elsewhere)) != records.run_id(config)  # other loans
    other = CONFIGS.compose(["method=compressive", "task=digits", "model=wrn10_1"])
    assert other["model"]["name"] == "wrn10_1"
    assert other["schedule"] == config["schedule"] and other["optimizer"] == config["optimizer"]


def test_an_optimizer_is_chosen_by_name_whatever_the_recipe_has():
    """So is a schedule; nothing of the recipe's own is left."""
    for words in (["method=rgp", "task=digits"], ["method=lsg", "task=sst2", "model=roberta"]):
        for name in OPTIMIZERS:
            config = CONFIGS.compose([*words, f"optimizer={name}", "optimizer.lr=0.3"])
            alone = yaml.safe_load((cli.CONF / "optimizer" / f"{name}.yaml").read_text())
            assert set(alone) - {"defaults"} <= set(config["optimizer"])
            assert config["optimizer"]["lr"] == 0.3
            check_settings("optimizer", config["optimizer"])
    for name, momentum in {"adam": None, "sgd_plain": 0.0}.items():
        words = ["method=dp_grape", "task=digits", f"optimizer={name}", "optimizer.lr=0.3"]
        assert CONFIGS.compose(words)["optimizer"].get("momentum") == momentum  # its own has 0.9
    config = CONFIGS.compose(["method=rgp", "task=digits", "schedule=linear_decay"])
    assert config["schedule"] == {"_target_": "dpexp.training.schedules.LinearDecay"}


def test_a_recipe_s_optimizer_and_one_that_is_chosen_are_one_run():
    words = ["method=compressive", "task=digits", "optimizer.lr=0.1"]
    chosen = [*words, "optimizer=sgd_plain", "schedule=inverse_root"]
    assert records.run_id(CONFIGS.compose(chosen)) == records.run_id(CONFIGS.compose(words))


OPTIONAL = sorted({path.parent.name for path in cli.CONF.glob("*/none.yaml")})


@pytest.mark.parametrize("word", [*(f"{group}=none" for group in OPTIONAL), "clipping=flat"])
def test_an_option_without_settings_is_as_no_choice(word):
    words = ["method=dpsgd", "task=digits", "model=linear", "profile=embedded", "eps=8"]
    assert cli.compose([*words, word]) == cli.compose(words)


def test_public_none_is_a_choice_beside_a_method_that_takes_the_tasks_own_set():
    """B-GEP, whose file begins with that of GEP."""
    words = ["method=bgep", "task=digits", "profile=embedded", "eps=8"]
    assert CONFIGS.compose(words)["public"]["name"] == "shapes"
    assert CONFIGS.compose([*words, "public=none"])["public"]["name"] == "none"


def test_an_option_without_settings_takes_an_experiments_choice_away():
    words = ["experiment=scratch/cifar10_wrn16_4_eps8", "augmentation=none", "averaging=none"]
    config = cli.compose(words)
    assert not {"augmentation", "averaging"} & config.keys()
    assert {"augmentation", "averaging"} <= cli.compose(words[:1]).keys()


def test_every_optional_choice_has_a_word_for_none_of_it():
    """A group without one could not be left out in a sweep."""
    defaults = yaml.safe_load((cli.CONF / "config.yaml").read_text())["defaults"]
    choices = [choice for each in defaults if each != "_self_" for choice in each.items()]
    optional = {group for group, chosen in choices if not chosen}
    without = {path.parent.name for path in cli.CONF.glob("*/*.yaml") if path.stem in NONE}
    assert optional - without == {"task", "method", "experiment", "correlation"}  # noise=true
