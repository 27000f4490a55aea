#!/usr/bin/env python3
"""Times torch's kernels on a GPU: takes requests, one JSON object a line.

    {"what": "add"|"silu"|"silu_mul"|"cast"|"rms_norm"|"rms_norm_grads", "dtype": "f32"|"bf16", "shape": [R, D], ..}
    {"what": "matmul", "dtype": .., "m": M, "n": N, "k": K, "transposes": "nn"|"nt"|"tn"|"tt", ..}
    {"what": "copy", "dtype": .., "elements": N, ..}

each with "sets": S, "repeats": R -> {"seconds": [of one operation, the mean of R in a row]}. Operations go through S sets of
operands, so that these come from memory. f32 products do not use TF32. The first request of a kind warms up.
"""

import argparse
import time

EPSILON = 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: only to see that it works")
    options = parser.parse_args()

    global torch, device
    import torch

    device = torch.device(options.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    from serve import serve

    serve(Bench().answer, device=name(), cuda=torch.version.cuda)


def name() -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


class Bench:
    """Keeps the operands of the last kind of request."""

    def __init__(self):
        self.kind, self.work, self.sets = None, None, []

    def answer(self, request: dict) -> dict:
        repeats = request.pop("repeats")
        if request != self.kind:
            self.sets = []  # gone before new ones come
            self.kind, self.work = request, WORK[request["what"]]
            self.sets = [operands(request) for _ in range(request["sets"])]
            self.turn(2 * len(self.sets))
        return {"seconds": [self.turn(repeats)]}

    def turn(self, repeats: int) -> float:
        results = [None] * len(self.sets)
        synchronize()
        started = time.perf_counter()
        for repeat in range(repeats):
            at = repeat % len(self.sets)
            results[at] = self.work(*self.sets[at])
        synchronize()
        return (time.perf_counter() - started) / repeats


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cast(x, *_):
    return x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32)


def rms_norm(x, _dy, w, *_):
    return torch.nn.functional.rms_norm(x, w.shape, w, EPSILON)


def rms_norm_grads(x, dy, w, y):
    return torch.autograd.grad(y, (x, w), dy, retain_graph=True)


WORK = {
    "copy": lambda x: x.clone(),
    "add": lambda x, dy, *_: x + dy,
    "silu": lambda x, *_: torch.nn.functional.silu(x),
    "silu_mul": lambda x, dy, *_: torch.nn.functional.silu(x) * dy,
    "cast": cast,
    "rms_norm": rms_norm,
    "rms_norm_grads": rms_norm_grads,
    "matmul": lambda a, b: torch.matmul(a, b),
}


def operands(request: dict) -> tuple:
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[request["dtype"]]
    if request["what"] == "copy":
        return (uniform(request["elements"], dtype=dtype),)
    if request["what"] == "matmul":
        m, n, k = (request[name] for name in "mnk")
        a_transposed, b_transposed = (letter == "t" for letter in request["transposes"])
        a = uniform(k, m, dtype=dtype).T if a_transposed else uniform(m, k, dtype=dtype)
        b = uniform(n, k, dtype=dtype).T if b_transposed else uniform(k, n, dtype=dtype)
        return a, b

    rows, features = request["shape"]
    x, dy, w = (uniform(*shape, dtype=dtype) for shape in ((rows, features), (rows, features), (features,)))
    if request["what"] != "rms_norm_grads":
        return x, dy, w
    x.requires_grad_(), w.requires_grad_()
    return x, dy, w, rms_norm(x, dy, w)


def uniform(*shape: int, dtype):
    return (torch.rand(shape, device=device) * 2 - 1).to(dtype)


if __name__ == "__main__":
    main()
