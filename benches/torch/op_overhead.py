#!/usr/bin/env python3
"""Times what autograd costs an operation that computes nothing, and prints one JSON object.

    op_overhead.py [--operations 1000] [--repeats 50] [--json OUT]

A chain of multiplications of one-element f32 tensors, on one thread: nanoseconds an operation to compute without a graph, to
compute and record, and to go backward.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path, help="also write the report there")
    options = parser.parse_args()

    torch.set_num_threads(1)
    runs = [run(options.operations) for _ in range(options.repeats + 3)][3:]
    report = {
        "bench": "op_overhead",
        "operations": options.operations,
        "repeats": options.repeats,
        "ns_per_op": {
            name: summary([each[index] for each in runs]) for index, name in enumerate(("plain", "record", "backward"))
        },
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


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


def summary(values: list[float]) -> dict:
    return {
        "median": round(statistics.median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
    }


if __name__ == "__main__":
    main()
