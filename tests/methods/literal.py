"""Slow, literal transcriptions of the papers' algorithms, in float64, one example at a time."""

import torch
import torch.nn.functional as F


def gradients(model, x, y, loss_of=F.cross_entropy):
    """Per-example gradients by plain autograd, one backward pass each."""
    names = [name for name, _ in model.named_parameters()]
    rows = []
    for x_i, y_i in zip(x, y, strict=True):
        loss = loss_of(model(x_i[None]), y_i[None])
        rows.append(torch.autograd.grad(loss, list(model.parameters())))
    return {name: torch.stack([row[k] for row in rows]) for k, name in enumerate(names)}


def clip(vectors, c):
    """Scale each example's blocks, taken as one vector, to a norm of at most c."""
    norms = sum(v.flatten(1).square().sum(1) for v in vectors.values()).sqrt()
    factor = torch.minimum(torch.ones_like(norms), c / norms)
    return {k: v * factor.view(-1, *[1] * (v.dim() - 1)) for k, v in vectors.items()}


def gram_schmidt(columns):
    """Orthonormalise columns one after the other."""
    done = []
    for column in columns.T:
        for _ in range(2):
            for earlier in done:
                column = column - (earlier @ column) * earlier
        done.append(column / column.norm())
    return torch.stack(done, dim=1)


def dpsgd(model, x, y, c, batch_size):
    """Abadi et al. 2016, Algorithm 1, without noise."""
    clipped = clip(gradients(model, x, y), c)
    return {name: each.sum(0) / batch_size for name, each in clipped.items()}


def rgp_carriers(delta, first_right, iterations):
    """rgp, Algorithm 2, from a given Gaussian start."""
    right = first_right
    for _ in range(iterations):
        left = gram_schmidt(delta @ right.T)
        right = left.T @ delta
    return left, gram_schmidt(right.T).T


def rgp(model, bases, x, y, c, batch_size, head, head_factor, sides):
    """rgp, Algorithm 1 lines 8 to 14, without noise.

    `bases` maps a weight's name to (L, R); dL and dR come from the explicit gradient by
    Theorem 2.1, the update from Eq. (3).
    """
    each = gradients(model, x, y)
    vectors = {}
    for name, (left, right) in bases.items():
        rows = each[name].flatten(2)
        vectors[name, "left"] = rows @ right.T
        if sides == "both":
            vectors[name, "right"] = left.T @ rows
    for name in each:
        if name.startswith(head):
            vectors[name, "full"] = head_factor * each[name]
    sums = {key: v.sum(0) / batch_size for key, v in clip(vectors, c).items()}
    update = {}
    for name, (left, right) in bases.items():
        d_left = sums[name, "left"]
        full = d_left @ right
        if sides == "both":
            full = full + left @ sums[name, "right"] - left @ left.T @ d_left @ right
        update[name] = full.view(each[name].shape[1:])
    for name in each:
        if name.startswith(head):
            update[name] = sums[name, "full"]
    return update
