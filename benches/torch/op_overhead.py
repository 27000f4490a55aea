#!/usr/bin/env python3
"""Times the overhead of autograd per operation. Serves requests, one JSON object per line.

    {"operations": N} -> {"ns": [plain, record, backward]}

A chain of multiplications of one-element f32 tensors on one thread, in nanoseconds per operation: computing without recording,
computing and recording, and the backward pass.
"""

import time

import torch
from serve import serve


def main():
    torch.set_num_threads(1)
    serve(lambda request: {"ns": run(request["operations"])})


def run(operations: int) -> tuple[float, float, float]:
    factor = torch.tensor([1.0001])
    with torch.no_grad():
        plain, _ = timed(operations, chain, torch.ones(1), factor, operations)

    weight = torch.ones(1, requires_grad=True)
    record, last = timed(operations, chain, weight, factor, operations)
    backward, _ = timed(operations, last.backward)
    return plain, record, backward


def chain(x, factor, operations: int):
    for _ in range(operations):
        x = x * factor
    return x


def timed(operations: int, function, *arguments):
    started = time.perf_counter()
    result = function(*arguments)
    return 1e9 * (time.perf_counter() - started) / operations, result


if __name__ == "__main__":
    main()
