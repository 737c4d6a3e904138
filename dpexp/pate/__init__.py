"""PATE: a student learns public inputs from noisy votes of teachers with disjoint training data.

Papernot et al. 2017 (arXiv 1610.05755) and 2018 (arXiv 1802.08908): gep's baseline (Table 1). With
n_j(x) the number of teachers that say class j of a public input x:

    teachers  each trained, without noise, on its own part of the private examples
    check     max_j n_j(x) + N(0, sigma_1^2) >= T              2018, Algorithm 1
    label     argmax_j (n_j(x) + N(0, sigma_2^2))              likewise
    student   trained on the labelled x; it meets nothing private

Only checks and labels leave the private data (`dpexp.pate.votes`); the noise is calibrated so
that all that may be asked and answered fits the budget, whatever the votes.

Differences from the papers:
 1. They state the data-dependent epsilon alone, which depends on private data. Here the budget
    holds without looking at the votes; the data-dependent epsilon stands beside it in the
    certificate.
 2. So that this is possible, no more than `queries` inputs are asked and `answers` answered.
 3. Each example's teacher is drawn for it alone, in place of equal slices: an example that is added
    or removed leaves the other teachers as they are.
 4. The student learns from the labelled inputs alone; theirs is semi-supervised.
 5. Teachers are gep's MNIST network for every task; the student is the run's model.
"""

from dpexp.pate.loop import require_begin, train
from dpexp.pate.settings import PATE

__all__ = ["PATE", "require_begin", "train"]
