"""Computes values and gradients of ops with torch in f64, for the test beside this file.

    python generate.py [--seed N] > ops.json        # torch 2.15
"""

import argparse
import json

import torch
import torch.nn.functional as F


def attention(cap, causal):
    """Attention whose query heads share key heads, with capped scores and a bias."""

    def compute(q, k, v, bias):
        heads = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(heads, dim=2) for x in (k, v))
        scores = 0.7 * torch.einsum("bthd,bshd->bhts", q, k)
        if cap:
            scores = cap * torch.tanh(scores / cap)
        scores = scores + bias
        if causal:
            t, s = scores.shape[2:]
            scores = scores.masked_fill(torch.ones(t, s).triu(1).bool(), float("-inf"))
        return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)

    return compute


def cross_entropy(logits):
    labels = torch.tensor([[2, -100, 0], [6, 6, -100]])
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100)


QKVB = [[2, 3, 4, 5], [2, 7, 2, 5], [2, 7, 2, 5], [4, 3, 7]]

CASES = {
    "gelu": ([[3, 7]], F.gelu),
    "gelu_tanh": ([[3, 7]], lambda x: F.gelu(x, approximate="tanh")),
    "softplus": ([[3, 7]], lambda x: F.softplus(x, threshold=100)),
    "erf": ([[3, 7]], torch.erf),
    "layer_norm": ([[2, 3, 5], [5], [5]], lambda x, w, b: F.layer_norm(x, [5], w, b, 1e-3)),
    "logsumexp": ([[3, 4, 5]], lambda x: torch.logsumexp(x, [0, 2])),
    "cross_entropy": ([[2, 3, 7]], cross_entropy),
    "cumsum": ([[3, 4, 5]], lambda x: torch.cumsum(x, 1)),
    "sort": ([[3, 4, 5]], lambda x: torch.sort(x, dim=1, stable=True).values),
    "sort_descending": ([[3, 4, 5]], lambda x: torch.sort(x, dim=0, descending=True, stable=True).values),
    "tril": ([[2, 3, 5]], lambda x: torch.tril(x, 1)),
    "triu": ([[2, 5, 3]], lambda x: torch.triu(x, -2)),
    "attention_bias": (QKVB, attention(None, False)),
    "attention_cap_causal": (QKVB, attention(0.8, True)),
}


def plain(x):
    return {"shape": list(x.shape), "data": x.detach().flatten().tolist()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=7)
    torch.manual_seed(parser.parse_args().seed)
    cases = []
    for name, (shapes, function) in CASES.items():
        inputs = [torch.randn(shape, dtype=torch.float64) * 2 for shape in shapes]
        inputs = [x.requires_grad_() for x in inputs]
        y = function(*inputs)
        dy = torch.randn_like(y)
        gradients = torch.autograd.grad(y, inputs, dy)
        case = {"name": name, "y": plain(y), "dy": plain(dy)}
        case["inputs"] = [plain(x) for x in inputs]
        case["gradients"] = [plain(x) for x in gradients]
        cases.append(case)
    print(json.dumps(cases))


main()
