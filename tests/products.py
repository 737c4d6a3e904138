"""Every method beside every recipe, several recipes at once: on images, on texts, on ranks."""

from __future__ import annotations

import random
import re
from itertools import combinations, product

from dpexp import cli
from dpexp.cli.instantiate import loop_of
from dpexp.cli.verify import verify
from dpexp.records import locate
from dpexp.types import ConfigError
from tests.contract.cases import ALL_METHODS, case
from tests.runs import CONFIGS, of

SHORT = ["profile=embedded", "device=cpu", "privacy.clip_norm=0.05"]
TASKS = {  # four steps each
    "images": ["task=digits", "batch_size=120", "epochs=0.3"],
    "texts": ["task=sentiment", "task.dataset_size=400", "task.test_size=100", "batch_size=40"]
    + ["epochs=0.4"],
}
VARIANTS = {  # other ways through a method
    "compressive": "method.psi=none",
    "dp_grape": "method.moments=none",
    "dp_powersgd": "method.error_feedback=true",
    "dp_zo": "method.noise=laplace",
    "linear": "noise=true clip=true eps=8",
    "lsg": "method.mask=carriers",
    "rgp": "method.residual=false",
}
RECIPES = {
    "augmentation": {
        "views": "augmentation=crop_flip augmentation.multiplicity=2 augmentation.padding=1"
    },
    "averaging": {
        "ema": "averaging=ema averaging.decay=0.5 averaging.warm_up=false",
        "last": "averaging=last averaging.share=1",
    },
    "clipping": {name: f"clipping={name}" for name in ("normalize", "per_layer", "adaptive")},
    "denoise": {name: f"denoise={name}" for name in ("doppler", "disk")},
    "noise": {"correlated": "noise=correlated noise.bands=2", "secret": "noise=secret"},
}
CHOICES = {name: words for group in RECIPES.values() for name, words in group.items()}
PAIRS = [pair for one, other in combinations(RECIPES.values(), 2) for pair in product(one, other)]
METHODS = {name: (name, "") for name in ALL_METHODS}
METHODS |= {f"{name} {words}": (name, words) for name, words in VARIANTS.items()}


def words_of(task, method, recipes):
    """Return a run's words.

    Args:
        task: of TASKS.
        method: of METHODS.
        recipes: of CHOICES, one of a group at most.
    """
    name, more = METHODS[method]
    one = case(name)
    narrow = [*one.few, *one.narrow, *one.brief]
    if task == "texts":  # it has a model of its own
        narrow = [word for word in narrow if not word.startswith("model")]
    chosen = [word for each in recipes for word in CHOICES[each].split()]
    return [f"method={name}", *SHORT, *TASKS[task], *narrow, *more.split(), *chosen]


def tried(words, results, ranks=None):
    """Do a run; return its directory, or the one line that refuses it."""
    try:
        config = CONFIGS.compose_anew([*words, f"results={results}"])
        if ranks is None:
            return cli.execute(config)
        loop_of(config).train(config, cli.build_parts(config, ranks.device), ranks)
        return locate(config["results"], config)
    except ConfigError as error:
        line = str(error)
        assert re.fullmatch(r"Expected .+", line), line  # no more than one line
        return line


def weights_of(directory, recipes):
    """Check that a record verifies and says what was released; return the hash of its weights."""
    code, said = verify(directory)
    assert code == 0, said
    _, result, privacy = of(directory)
    released = {each["name"] for each in privacy.get("releases", ())}
    assert ("quantile" in released) == ("adaptive" in recipes)
    assert ("correlation" in privacy) == ("correlated" in recipes)
    assert privacy["replayable"] == ("secret" not in recipes)
    return result["weights_sha256"]


def covering(pairs, seed=0):
    """Return sets of recipes, one of a group at most, so that each of these pairs is in one."""
    place = {name: at for at, name in enumerate(CHOICES)}.__getitem__
    rng, allowed, left, rows = random.Random(seed), set(pairs), set(pairs), []
    while left:
        row = [*min(left)]
        for name in rng.sample([*CHOICES], len(CHOICES)):
            made = {tuple(sorted((name, each), key=place)) for each in row}
            if made <= allowed and made & left:
                row.append(name)
        row.sort(key=place)
        left -= {*combinations(row, 2)}
        rows.append(tuple(row))
    return rows


def as_many(task, method, row, results, *more):
    """Do a run with the most of some recipes that a method takes together.

    Returns:
        These recipes, the run's directory, and the lines that refused others; if all do, the last.
    """
    lines = {}
    for size in range(len(row), -1, -1):
        for some in combinations(row, size):
            outcome = tried([*words_of(task, method, some), *more], results)
            if not isinstance(outcome, str):
                return some, outcome, lines
            lines[some] = outcome
    return None, None, lines


def everything(task, method, results):
    """Try a method by itself, beside each recipe, and beside all pairs of those that it takes.

    Returns:
        The directories of what ran, and the lines that refused the rest, by sets of recipes.
    """
    ran, refused, hashes = {}, {}, {}

    def run(recipes):
        outcome = tried(words_of(task, method, recipes), results)
        if isinstance(outcome, str):
            refused[recipes] = outcome
            return False
        ran[recipes], hashes[recipes] = outcome, weights_of(outcome, recipes)
        return True

    run(())
    taken = [name for name in CHOICES if run((name,))]
    idle = [name for name in taken if hashes[name,] == hashes.get(())]
    assert not idle, f"changes nothing: {idle}"
    for row in covering([pair for pair in PAIRS if {*pair} <= {*taken}]):
        if len(row) == 2 or not run(row):
            for pair in combinations(row, 2):  # which of them do not go together
                run(pair)
    return ran, refused
