#!/usr/bin/env python3
"""Times torch's operations on a GPU or a CPU. Serves requests, one JSON object per line.

    {"what": a row kernel, "dtype": "f32"|"bf16", "shape": [R, D], ..}
    {"what": "matmul", "dtype": .., "m": M, "n": N, "k": K, "transposes": "nn"|"nt"|"tn"|"tt", ..}
    {"what": "copy", "dtype": .., "elements": N, ..}
    {"what": "attention"|"attention_grad"|"rope"|"rms_norm_rope", "batch": B, "tokens": T, "heads": H, "kv_heads": G, "head_dim": D, ..}
    {"what": "router"|"expert_order"|"permute"|"unpermute"|"grouped_gemm"|their gradients, "tokens": N, "hidden": H, "inner": F,
     "experts": E, "chosen": K, ..}
    {"what": "embedding"|"linear_cross_entropy"|their gradients, "tokens": N, "hidden": H, "vocabulary": V, ..}
    {"what": "adamw", "tensors": N, "elements": M, ..}

each with "sets": S, "repeats": R, "compiled": bool -> {"seconds": [mean seconds per operation]} or {"error": message}.
Operations cycle through S sets of operands, so that operands come from memory. f32 products do not use TF32. The first request
of a kind warms up. "compiled" selects torch.compile.
"""

import argparse
import time

EPSILON = 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", help="torch's device name")
    parser.add_argument("--threads", type=int, help="CPU threads")
    options = parser.parse_args()

    global torch, device
    import torch

    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    from serve import serve

    bench = Bench()

    def answer(request: dict) -> dict:
        try:
            return bench.answer(request)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            bench.forget()  # later requests may succeed
            return {"error": str(error)}

    serve(answer, device=name(), cuda=torch.version.cuda)


def name() -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


class Bench:
    """Caches the operands of the last kind of request."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.kind, self.work, self.sets = None, None, []

    def answer(self, request: dict) -> dict:
        repeats = request.pop("repeats")
        compiled = request.pop("compiled")
        if (request, compiled) != self.kind:
            self.sets = []  # freed before new ones are allocated
            work = WORK[request["what"]]
            self.kind, self.work = (request, compiled), torch.compile(work) if compiled else work
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


def add_rms_norm(x, dy, w, *_):
    h = x + dy
    return h, torch.nn.functional.rms_norm(h, w.shape, w, EPSILON)


def softmax_grad(x, dy, *_):
    return torch._softmax_backward_data(dy, x, -1, x.dtype)


def swiglu(x, *_):
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def swiglu_grad(x, dy, _w, y):
    return torch.autograd.grad(y, x, dy[:, : y.shape[1]], retain_graph=True)


def attention(q, k, v, *_):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attention_grad(q, k, v, dout, out):
    return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def rope(x, cos, sin, *_):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def rms_norm_rope(x, cos, sin, w):
    return rope(torch.nn.functional.rms_norm(x, w.shape, w, EPSILON), cos, sin)


def router(of):
    weights, indices = of["probabilities"].topk(of["chosen"], dim=-1)
    return weights / weights.sum(-1, keepdim=True), indices


def router_grad(of):
    return torch.autograd.grad(of["routed"], of["probabilities"], of["weights"], retain_graph=True)


def expert_order(of):
    order = of["slots"].argsort(stable=True)
    return order, torch.bincount(of["slots"], minlength=of["experts"]).cumsum(0)


def unpermute(of):
    y = of["permuted"] * of["weights"].flatten()[of["order"], None]
    return torch.zeros_like(of["x"]).index_add(0, of["token"], y)


def permute_grad(of):
    return torch.zeros_like(of["x"]).index_add(0, of["token"], of["permuted"])


def unpermute_grad_input(of):
    return of["x"][of["token"]] * of["weights"].flatten()[of["order"], None]


def unpermute_grad_weights(of):
    dots = (of["x"][of["token"]] * of["permuted"]).sum(-1)
    return torch.empty_like(dots).index_copy(0, of["order"], dots)


def grouped_gemm_grad_weight(of):
    # One product per expert, of two matrices with the same groups of rows.
    return grouped(of["dgate_up"].T, of["permuted"], of)


def grouped(a, b, of):
    return torch.nn.functional.grouped_mm(a, b, offs=of["offsets"])


def embedding(table, ids, *_):
    return torch.nn.functional.embedding(ids, table)


def embedding_grad(table, ids, dy, y):
    return torch.autograd.grad(y, table, dy, retain_graph=True)


def linear_cross_entropy(x, w, labels):
    return torch.nn.functional.cross_entropy((x @ w.T).float(), labels, reduction="sum")


def linear_cross_entropy_grads(x, w, labels, loss):
    return torch.autograd.grad(loss, (x, w), retain_graph=True)


WORK = {
    "copy": lambda x: x.clone(),
    "add": lambda x, dy, *_: x + dy,
    "silu": lambda x, *_: torch.nn.functional.silu(x),
    "silu_mul": lambda x, dy, *_: torch.nn.functional.silu(x) * dy,
    "swiglu": swiglu,
    "swiglu_grad": swiglu_grad,
    "transpose": lambda x, *_: x.T.contiguous(),
    "largest 8": lambda x, *_: x.topk(8, dim=-1),
    "normal": lambda x, *_: torch.randn_like(x),
    "dropout": lambda x, *_: torch.nn.functional.dropout(x, 0.5),
    "cast": cast,
    "rms_norm": rms_norm,
    "rms_norm_grads": rms_norm_grads,
    "add_rms_norm": add_rms_norm,
    "softmax_grad": softmax_grad,
    "softmax": lambda x, *_: torch.softmax(x, -1),
    "sum of rows": lambda x, *_: x.sum(1),
    "sum of columns": lambda x, *_: x.sum(0),
    "matmul": lambda a, b: torch.matmul(a, b),
    "attention": attention,
    "attention_grad": attention_grad,
    "rope": rope,
    "rms_norm_rope": rms_norm_rope,
    "router": router,
    "router_grad": router_grad,
    "expert_order": expert_order,
    "permute": lambda of: of["x"][of["token"]],
    "permute_grad": permute_grad,
    "unpermute": unpermute,
    "unpermute_grad_input": unpermute_grad_input,
    "unpermute_grad_weights": unpermute_grad_weights,
    "grouped_gemm": lambda of: grouped(of["permuted"], of["gate_up"].transpose(1, 2), of),
    "grouped_gemm_grad_input": lambda of: grouped(of["dgate_up"], of["gate_up"], of),
    "grouped_gemm_grad_weight": grouped_gemm_grad_weight,
    "embedding": embedding,
    "embedding_grad": embedding_grad,
    "linear_cross_entropy": linear_cross_entropy,
    "linear_cross_entropy_grads": linear_cross_entropy_grads,
    "adamw": lambda optimizer: optimizer.step(),
}


def operands(request: dict) -> tuple:
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[request["dtype"]]
    what = request["what"]
    if what == "copy":
        return (uniform(request["elements"], dtype=dtype),)
    if what == "matmul":
        m, n, k = (request[name] for name in "mnk")
        a_transposed, b_transposed = (letter == "t" for letter in request["transposes"])
        a = uniform(k, m, dtype=dtype).T if a_transposed else uniform(m, k, dtype=dtype)
        b = uniform(n, k, dtype=dtype).T if b_transposed else uniform(k, n, dtype=dtype)
        return a, b
    if what.endswith("rope"):
        return of_positions(request, dtype)
    if what.startswith("attention"):
        return of_attention(request, dtype)
    if "experts" in request:
        return (of_experts(request, dtype),)
    if "vocabulary" in request:
        return of_vocabulary(request, dtype)
    if what == "adamw":
        return (of_adamw(request),)

    rows, features = request["shape"]
    x, dy, w = (uniform(*shape, dtype=dtype) for shape in ((rows, features), (rows, features), (features,)))
    forward = {"rms_norm_grads": rms_norm, "swiglu_grad": swiglu}.get(what)
    if forward is None:
        return x, dy, w
    x.requires_grad_(), w.requires_grad_()
    return x, dy, w, forward(x, dy, w)


def of_attention(request: dict, dtype) -> tuple:
    """[B, T, H, D] as in a layer, viewed as [B, H, T, D] as torch expects."""
    batch, tokens, features = (request[name] for name in ("batch", "tokens", "head_dim"))
    q, k, v = (
        uniform(batch, tokens, request[heads], features, dtype=dtype).transpose(1, 2)
        for heads in ("heads", "kv_heads", "kv_heads")
    )
    if request["what"] == "attention":
        return q, k, v
    q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    return q, k, v, torch.rand_like(q), attention(q, k, v)


def of_positions(request: dict, dtype) -> tuple:
    batch, tokens, heads, features = (request[name] for name in ("batch", "tokens", "heads", "head_dim"))
    angles = torch.outer(torch.arange(tokens, device=device), uniform(features // 2, dtype=torch.float32))
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return uniform(batch, tokens, heads, features, dtype=dtype), cos, sin, uniform(features, dtype=dtype)


def of_experts(request: dict, dtype) -> dict:
    tokens, hidden, inner = (request[name] for name in ("tokens", "hidden", "inner"))
    experts, chosen = request["experts"], request["chosen"]
    probabilities = (4 * uniform(tokens, experts, dtype=dtype)).softmax(-1)
    weights, indices = probabilities.topk(chosen, dim=-1)
    probabilities.requires_grad_(request["what"] == "router_grad")
    routed, _ = router({"probabilities": probabilities, "chosen": chosen})
    slots = indices.flatten()
    order = slots.argsort(stable=True)
    x, token = uniform(tokens, hidden, dtype=dtype), order // chosen
    return {
        "x": x,
        "probabilities": probabilities,
        "routed": routed,
        "chosen": chosen,
        "experts": experts,
        "slots": slots,
        "order": order,
        "token": token,
        "weights": weights,
        "offsets": torch.bincount(slots, minlength=experts).cumsum(0, dtype=torch.int32),
        "permuted": x[token],
        "gate_up": uniform(experts, 2 * inner, hidden, dtype=dtype),
        "dgate_up": uniform(tokens * chosen, 2 * inner, dtype=dtype),
    }


def of_vocabulary(request: dict, dtype) -> tuple:
    tokens, hidden, vocabulary = (request[name] for name in ("tokens", "hidden", "vocabulary"))
    x, w = uniform(tokens, hidden, dtype=dtype), uniform(vocabulary, hidden, dtype=dtype)
    labels = torch.arange(tokens, device=device) * 7919 % vocabulary
    if request["what"].startswith("embedding"):
        w.requires_grad_()
        return w, labels, x, embedding(w, labels)
    if request["what"] == "linear_cross_entropy":
        return x, w, labels
    x.requires_grad_(), w.requires_grad_()
    return x, w, labels, linear_cross_entropy(x, w, labels)


def of_adamw(request: dict):
    parameters = [torch.nn.Parameter(uniform(request["elements"], dtype=torch.float32)) for _ in range(request["tensors"])]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)


def uniform(*shape: int, dtype):
    return (torch.rand(shape, device=device) * 2 - 1).to(dtype)


if __name__ == "__main__":
    main()
