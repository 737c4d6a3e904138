"""`dpexp.train` whose test examples are training ones says so, and its record must."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import dpexp
from dpexp import records
from dpexp.cli.verify import verify
from dpexp.data.overlap import are_repeated, hashes
from dpexp.privacy.certificate import JUDGED_ON_TRAINING
from dpexp.privacy.verification.files import verify_files
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)

GEN = torch.Generator().manual_seed(0)
X, Y = torch.rand(200, 6, generator=GEN), torch.randint(3, (200,), generator=GEN)
FEW = torch.randint(2, (200, 3), generator=GEN).repeat(1, 2).float()
WHOLE, OWN = TensorDataset(X, Y), [*range(150)]


class Noisy(Dataset):
    """Never returns an example twice alike."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        return X[index] + torch.rand(6, generator=GEN), Y[index]


NOISY = Noisy()
PAIR = (X, Y)
JUDGED = {
    "the same pair": (PAIR, PAIR),
    "the same tensors": (PAIR, (X, Y)),
    "the same array": ((X.numpy(), Y.numpy()), PAIR),
    "a view": (PAIR, (X[50:100], Y[50:100])),
    "every third row": (PAIR, (X[::3], Y[::3])),
    "a view of few values": ((FEW, Y), (FEW[:40], Y[:40])),
    "a copy": (PAIR, (X.clone(), Y.clone())),
    "a copy of few values": ((FEW, Y), (FEW.clone(), Y)),
    "another order": (PAIR, (X.flip(0), Y.flip(0))),
    "rows": (PAIR, (X[[7, 3, 11]], Y[[7, 3, 11]])),
    "one row": (PAIR, (X[[7]], Y[[7]])),
    "other labels": (PAIR, (X.clone(), 2 - Y)),
    "all, of which a part is trained on": ((X[:150], Y[:150]), PAIR),
    "a data set of them": (PAIR, WHOLE),
    "the same subset": (Subset(WHOLE, OWN), Subset(WHOLE, OWN)),
    "the data set of a subset": (Subset(WHOLE, OWN), WHOLE),
    "augmented": (NOISY, NOISY),
    "augmented subsets of subsets": (
        Subset(NOISY, [*range(20, 60)]),
        Subset(Subset(NOISY, OWN), [30, 31]),
    ),
}
SOME = ["the same tensors", "a view", "a copy of few values", "another order", "one row"]
SOME += ["other labels", "the data set of a subset", "augmented subsets of subsets"]
NOT_JUDGED = {
    "rows of one tensor": ((X[:150], Y[:150]), (X[150:], Y[150:])),
    "rows in turn": ((X[::2], Y[::2]), (X[1::2], Y[1::2])),
    "subsets": (Subset(WHOLE, OWN), Subset(WHOLE, [*range(150, 200)])),
    "augmented subsets": (Subset(NOISY, OWN), Subset(NOISY, [*range(150, 200)])),
    "few rows in common": ((X[:150], Y[:150]), (X[145:], Y[145:])),
    "few values": ((FEW[:150], Y[:150]), (FEW[150:], Y[150:])),
}


def trained(pairs, results, **settings):
    said = {"method": "dpsgd", "eps": 8, "epochs": 0.25, "batch_size": 20, "lr": 0.5}
    said |= {"device": "cpu", "results": results, "settings": settings}
    return dpexp.train(nn.Linear(6, 3), *pairs, **said)


@pytest.mark.filterwarnings("ignore:.*test examples are of class")
@pytest.mark.parametrize("name", few(JUDGED, SOME))
def test_a_run_that_is_judged_on_training_examples_says_so(name, tmp_path):
    run = trained(JUDGED[name], tmp_path)
    assert JUDGED_ON_TRAINING in run.certificate["deviations"]
    assert run.config["task"]["judged_on_training"] is True
    assert verify(run.directory)[0] == 0


@pytest.mark.parametrize("pairs", NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_a_run_that_is_judged_on_others_does_not(pairs, tmp_path):
    run = trained(pairs, tmp_path)
    assert JUDGED_ON_TRAINING not in run.certificate["deviations"]
    assert "judged_on_training" not in run.config["task"]
    assert verify(run.directory)[0] == 0


def test_a_record_says_it_in_both_files_or_in_none(tmp_path):
    record = records.read(trained((PAIR, PAIR), tmp_path).directory)
    assert verify_files(record.config, record.result, record.privacy).findings == ()
    silent, other = copy.deepcopy(record.privacy), copy.deepcopy(record.config)
    silent["deviations"].remove(JUDGED_ON_TRAINING)
    (missing,) = verify_files(record.config, record.result, silent).findings
    assert missing == f"deviations: '{JUDGED_ON_TRAINING}' is missing"
    del other["task"]["judged_on_training"]
    (too_many,) = verify_files(other, record.result, record.privacy).findings
    assert too_many == f"deviations: '{JUDGED_ON_TRAINING}' is not so"


def test_the_setting_cannot_take_it_back(tmp_path):
    run = trained((PAIR, PAIR), tmp_path, **{"++task.judged_on_training": False})
    assert JUDGED_ON_TRAINING in run.certificate["deviations"]


@pytest.mark.parametrize("values", [2, 10, 50, 300, 10_000])
def test_test_sets_drawn_like_training_ones_are_not_taken_for_them(values):
    """Rows that take so many values, drawn a hundred times, and a part of them for comparison."""
    gen = torch.Generator().manual_seed(1)
    for _ in range(100):
        drawn = hashes(torch.randint(values, (400, 1), generator=gen))
        assert not are_repeated(drawn[:300], drawn[300:])
        if values >= 1000:
            assert are_repeated(drawn[:300], drawn[200:300])


BASE = [*range(1000)]
OVER = {
    "whole, twice": BASE * 2,
    "whole, ten times": BASE * 10,
    "a rare class, nine times": BASE[100:] + BASE[:100] * 9,
    "half, twice": BASE[500:] + BASE[:500] * 2,
    "drawn with replacement": torch.randint(1000, (3000,), generator=GEN).tolist(),
    "twice, but for a few": (BASE * 2)[:-30],
}


@pytest.mark.parametrize("held", OVER.values(), ids=OVER)
def test_repeated_training_examples_hide_no_copies_among_test_ones(held):
    gen = torch.Generator().manual_seed(2)
    for size in (300, 600):
        copies = torch.randperm(1000, generator=gen)[:size].tolist()
        assert are_repeated(held, copies)
        assert are_repeated(held, copies[: size * 9 // 10] + [*range(5000, 5000 + size // 10)])
        assert not are_repeated(held, [*range(5000, 5000 + size)])
        assert not are_repeated(held, copies[: size // 5] + [*range(5000, 5000 + size)])


@pytest.mark.parametrize("common", [2, 30, 1000])
def test_values_of_uneven_shares_are_not_taken_for_training_examples(common):
    """Heavy tails, and a few common values beside many rare ones."""
    gen = torch.Generator().manual_seed(3)
    for train, test in ((300, 100), (2000, 200), (1000, 50), (100, 900)):
        for _ in range(20):
            size = (train + test,)
            tail = torch.rand(size, generator=gen).double().pow(-1.4).long()
            some = torch.randint(common, size, generator=gen)
            rare = torch.randint(10**9, size, generator=gen)
            mixed = torch.where(torch.rand(size, generator=gen) < 0.4, rare, some)
            for drawn in (tail.tolist(), mixed.tolist()):
                assert not are_repeated(drawn[:train], drawn[train:])
