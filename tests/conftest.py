import gc
import os
import pickle
from functools import cache, partial, wraps
from hashlib import sha256
from pathlib import Path

import omegaconf
import pytest
import yaml
from hydra._internal import defaults_list
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core import default_element
from hypothesis import settings

import dpexp  # noqa: F401  (makes torchvision importable before a test module imports it)
from dpexp.cli import composition, errors
from dpexp.cli.signals import restore_signals
from dpexp.records import replace_file

# A busy machine makes a timed example flaky; a failing one is replayed from its printed blob.
settings.register_profile("dpexp", deadline=None, print_blob=True)
settings.load_profile("dpexp")

# Words of `make test ARGS=-x`, which make hands on to the makes that tests run.
for word in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS"):
    os.environ.pop(word, None)

# No test cuts the power, and a disk takes milliseconds to hold what it is given.
os.fsync = lambda descriptor: None

# Every config has the same few hundred interpolations, each of which takes milliseconds to parse.
omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.grammar_parser.parse)


def _load(self, config_path, *, own=FileConfigSource.load_config, kept={}):  # noqa: B006
    """Read a config file once, and then a copy of what was read, until the file changes."""
    path = os.path.join(self.path, self._normalize_file_name(config_path))
    try:
        state = os.stat(path)
    except OSError:
        return own(self, config_path)
    key = (self.provider, path, state.st_mtime_ns, state.st_size)
    if key not in kept:
        kept[key] = pickle.dumps(own(self, config_path))
    return pickle.loads(kept[key])


def _is_config(self, config_path):
    """Look for a file, without the look at every folder above it that resolving links takes."""
    return os.path.isfile(os.path.join(self.path, self._normalize_file_name(config_path)))


def _share(self, delegate):
    """Take the sources as they are; every composition has its own anyway."""
    self.delegate, self.cache = delegate, {}


def _resolve(self, choices, value, *, own=default_element.InputDefault._resolve_interpolation_impl):
    """Resolve a default's interpolation; only one of a default's number reads the list of them."""
    overrides, defaults, *rest = choices
    return own(self, _choices(overrides, defaults if "defaults" in value else [], *rest), value)


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):
    """Reads what omegaconf's loader reads, several times as fast."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"]
        if len(set(keys)) < len(keys):
            return _slow.construct_mapping(self, node, deep=deep)  # says which, in its words
        return super().construct_mapping(node, deep=deep)


_slow = omegaconf._utils.get_yaml_loader()
_Loader.yaml_implicit_resolvers = _slow.yaml_implicit_resolvers
_Loader.yaml_constructors = _slow.yaml_constructors
omegaconf._utils.get_yaml_loader = lambda: _Loader

# A test composes a config in a tenth of a second, of which these take a half.
FileConfigSource.load_config, FileConfigSource.is_config = _load, _is_config
CachingConfigRepository.__init__ = _share
_choices, defaults_list._create_interpolation_map = (
    defaults_list._create_interpolation_map,
    lambda *arguments: arguments,
)
default_element.InputDefault._resolve_interpolation_impl = _resolve


def pytest_configure():
    """Hear the signals that tests send, also where a job in the background ignores them."""
    restore_signals()


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.path.stem != "test_ranks")


def pytest_collection_finish():
    """Have every process try its networks, as a test may break the code that tries them.

    And take what is imported by now from what a full collection looks through, twenty times over.
    """
    from dpexp.training.probing import kept

    kept.find = wraps(kept.find)(lambda key, model: None)
    kept.keep = wraps(kept.keep)(lambda key, model, found: None)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def begun_anew():
    """Forget what programs have said and read in this process, as one that has just begun."""
    errors.WARNED.clear()
    errors.own_words.clear()


@pytest.fixture(autouse=True, scope="session")
def composed_once(tmp_path_factory):
    """Have all workers compose a config once: what one made of some choices, the others read."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = tmp_path_factory.getbasetemp().parent / "composed"
        shared.mkdir(exist_ok=True)
        composition._chosen = cache(partial(_composed, shared, composition._chosen))


def _composed(shared, compose, *choices):
    kept = shared / sha256(repr(choices).encode()).hexdigest()
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    config = compose(*choices)
    replace_file(kept, partial(pickle.dump, config))
    return config


@pytest.fixture(scope="session")
def real_data_root():
    """The folder with the real data sets: DPEXP_DATA_ROOT, or shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("DPEXP_DATA_ROOT", beside))
    if not root.is_dir():
        pytest.skip("needs real data: set DPEXP_DATA_ROOT to a folder laid out like hub snapshots")
    return root


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """A folder with tiny/bert and tiny/roberta, laid out like hub snapshots; only to be read."""
    from tests.texts import save_model

    root = tmp_path_factory.mktemp("models")
    for architecture in ("bert", "roberta"):
        save_model(root, architecture)
    return root


@pytest.fixture(scope="session")
def programs():
    """Start Python programs, in processes of their own that need not import the libraries."""
    from tests.programs import Programs

    started = Programs()
    started.run(["-c", ""])  # none waits for the libraries of all
    yield started
    started.close()


@pytest.fixture
def shell(tmp_path, programs):
    """Run `python run.py WORDS` away from the checkout, results and caches of its own."""

    def call(*words, limits=None, **environment):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(tmp_path / "hub"),
            "HF_ENDPOINT": "http://127.0.0.1:9",  # nobody answers there: no network
            **environment,
        }
        run_py = str(Path(__file__).resolve().parents[1] / "run.py")
        return programs.run([run_py, *words], cwd=tmp_path, env=environment, limits=limits)

    return call
