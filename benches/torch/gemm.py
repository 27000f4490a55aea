#!/usr/bin/env python3
"""Times torch's matrix product. Serves requests, one JSON object per line.

    {"dtype": "f32"|"bf16", "m": M, "n": N, "k": K, "transposes": "nn"|"nt"|"tn"|"tt", "repeats": R} -> {"seconds": [...]}

C [m, n] = A [m, k] B [k, n]. `nt` means that B is stored as [n, k] (a weight [out, in]), `tn` that A is stored as [k, m] (the
gradient of a weight), `tt` both; transposed operands are views, not copies.
"""

import argparse
import os
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    global torch
    import torch

    torch.set_num_threads(options.threads)
    from serve import serve

    serve(measure)


def measure(request: dict) -> dict:
    """Seconds of each repeat of one product."""
    m, n, k = (request[name] for name in "mnk")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[request["dtype"]]
    a = operand(m, k, request["transposes"][0], dtype)
    b = operand(k, n, request["transposes"][1], dtype)
    out = torch.empty(m, n, dtype=dtype)

    seconds = []
    for _ in range(request["repeats"]):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


def operand(rows: int, columns: int, transpose: str, dtype):
    if transpose == "t":
        return torch.randn(columns, rows).to(dtype).T
    return torch.randn(rows, columns).to(dtype)


if __name__ == "__main__":
    main()
