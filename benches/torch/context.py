#!/usr/bin/env python3
"""torch's ring attention on gloo ranks: computes forward and backward passes and serves requests.

    context.py --rotation alltoall|allgather [--ranks 2] [--threads 1]

A request {"sequences": 1, "steps": N} runs N passes; the answer has their losses and seconds. The loss is the mean of
q y + q dq + k dk over the first rank's tokens, for dy = y. Tokens are divided by head and tail, as torch's load balance
does. `context_parallel` has no rule for the flash attention of CPUs, so its ring is called with these ops directly.
benches/context.rs runs it.
"""

import argparse
import time

from ranks import launch, serve_turns

TOKENS, HEADS, FEATURES = 4096, 8, 64
SCALE = 0.125


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rotation", choices=("alltoall", "allgather"), default="alltoall")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    launch(serve_passes, parser.parse_args())


def operands(rank: int, ranks: int):
    """q, k, v [1, H, t, D] of the chunks `rank` of the head and of the tail."""
    import torch

    def of(which: int):
        at = torch.arange(TOKENS * HEADS * FEATURES)
        whole = ((at + 17 * which) * 7919 % 4093).float() / 4093 - 0.5
        chunks = whole.view(2 * ranks, -1, HEADS, FEATURES)
        own = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])
        return own.transpose(0, 1).unsqueeze(0).contiguous()

    return of(0), of(1), of(2)


def serve_passes(rank: int, options):
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor.experimental._context_parallel._attention as ring

    aten = torch.ops.aten
    ring._cp_options.enable_load_balance = True
    ring.set_rotate_method(options.rotation)
    q, k, v = operands(rank, options.ranks)

    def forward(q, k, v, is_causal=False, **_):
        op = aten._scaled_dot_product_flash_attention_for_cpu
        return op(q.contiguous(), k.contiguous(), v.contiguous(), 0.0, is_causal, scale=SCALE)

    def backward(*, query, key, value, out, logsumexp, is_causal, grad_out, **_):
        op = aten._scaled_dot_product_flash_attention_for_cpu_backward
        tensors = [x.contiguous() for x in (grad_out, query, key, value, out)]
        return op(*tensors, logsumexp, 0.0, is_causal, scale=SCALE)

    def step():
        started, group = time.perf_counter(), dist.group.WORLD
        y, lse, *_ = ring._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
        gradients = ring._templated_ring_attention_backward(
            group, 2, backward, y, "grad_out", q, k, v, y, lse, True
        )
        seconds = time.perf_counter() - started
        dq, dk, _ = gradients
        return (q * y).mean().item() + (q * dq).mean().item() + (k * dk).mean().item(), seconds

    @torch.no_grad()
    def take(_sequences: int, steps: int) -> list:
        dist.barrier()
        return [step() for _ in range(steps)]

    serve_turns(rank, options.ranks, take)


if __name__ == "__main__":
    main()
