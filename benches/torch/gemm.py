#!/usr/bin/env python3
"""Times torch's matrix product at the shapes of the benches and prints one JSON object.

    gemm.py [--threads 2] [--repeats 20] [--json OUT]

C [m, n] = A [m, k] B [k, n]. `nt` means that B is stored as [n, k] (a weight [out, in]), `tn` that A is stored as [k, m] (the
gradient of a weight), `tt` both. 2 m n k operations a product; transposed operands are views, not copies.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

# m, n, k: an expert's projection, attention's, the output projection, and two squares.
SHAPES = ((512, 1024, 512), (2048, 256, 256), (2048, 4096, 256), (1024, 1024, 1024), (2048, 2048, 2048))
TRANSPOSES = ("nn", "nt", "tn", "tt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the report there")
    options = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    global torch
    import torch

    torch.set_num_threads(options.threads)
    rows = [
        measure(dtype, shape, transposes, options.repeats)
        for dtype in (torch.float32, torch.bfloat16)
        for shape in SHAPES
        for transposes in TRANSPOSES
    ]
    report = {
        "bench": "gemm",
        "threads": torch.get_num_threads(),
        "repeats": options.repeats,
        "rows": rows,
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(dtype, shape, transposes: str, repeats: int) -> dict:
    m, n, k = shape
    a = operand(m, k, transposes[0], dtype)
    b = operand(k, n, transposes[1], dtype)
    out = torch.empty(m, n, dtype=dtype)

    seconds = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - started)

    rates = sorted(2e-9 * m * n * k / each for each in seconds[2:])
    return {
        "dtype": "f32" if dtype == torch.float32 else "bf16",
        "m": m,
        "n": n,
        "k": k,
        "transposes": transposes,
        "gflops": {
            "median": round(statistics.median(rates), 1),
            "min": round(rates[0], 1),
            "max": round(rates[-1], 1),
        },
    }


def operand(rows: int, columns: int, transpose: str, dtype):
    if transpose == "t":
        return torch.randn(columns, rows).to(dtype).T
    return torch.randn(rows, columns).to(dtype)


if __name__ == "__main__":
    main()
