#!/usr/bin/env python3
"""Experts that gloo ranks divide: sends rows to them and back, or trains tiny with 32 experts, and serves requests.

    experts.py --travel forward|backward [--ranks 2] [--threads 1]
    experts.py --folder FOLDER [--windows 100] [--ranks 2] [--threads 1]

A request {"sequences": B, "steps": N} runs N steps; the answer has their losses and seconds. With --travel, an expert
returns the rows that it gets, and the loss is the mean of x y. Otherwise the ranks divide the B sequences of a step; the
first process writes the weights to FOLDER. The model is hand_written.py with grouped products, under DDP but for experts.
Rows are sent by all_to_all_single, with as many as there are. benches/experts.rs runs it.

Legend: R ranks, n tokens of a rank, K experts per token, H features.
"""

import argparse
import time
from pathlib import Path

from ranks import launch, serve_turns

EXPERTS, CHOSEN = 32, 2
# Of the rows that travel.
ROWS, FEATURES = 2048, 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--travel", choices=("forward", "backward"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--windows", type=int, default=100, help="how many sequences the steps need")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    launch(travel if options.travel else train, options)


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def exchange(rows, sent: list, received: list, group):
    """Sends rows to the ranks in turn, so many to each. The gradient goes back the same way."""
    import torch
    import torch.distributed as dist

    def send(rows, sent, received):
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    class Exchange(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            return send(rows, sent, received)

        @staticmethod
        def backward(ctx, gradient):
            return send(gradient, received, sent)

    return Exchange.apply(rows)


def dispatch(x_nh, expert_nk, held: int, group):
    """The rows of this rank's experts from all ranks, sorted by expert; how many each has; what combine needs."""
    import torch
    import torch.distributed as dist

    slots, ranks = expert_nk.flatten(), dist.get_world_size()
    order = slots.argsort(stable=True)
    there = torch.bincount(slots, minlength=ranks * held).view(ranks, held)
    here = torch.empty_like(there)
    dist.all_to_all_single(here, there, group=group)
    sent, received = there.sum(1).tolist(), here.sum(1).tolist()

    rows = exchange(x_nh.index_select(0, order // expert_nk.shape[1]), sent, received, group)
    expert = torch.arange(held).repeat(ranks).repeat_interleave(here.flatten())
    by_expert = expert.argsort(stable=True)
    return rows.index_select(0, by_expert), here.sum(0), (order, by_expert, sent, received)


def combine(y, weight_nk, kept, group):
    """For each token of this rank, the weighted sum of its experts' rows."""
    order, by_expert, sent, received = kept
    y = exchange(y.index_select(0, by_expert.argsort()), received, sent, group)
    y_nkh = y.index_select(0, order.argsort()).view(*weight_nk.shape, -1)
    return weight_nk.unsqueeze(1).bmm(y_nkh).squeeze(1)


def travel(rank: int, options):
    import torch
    import torch.distributed as dist

    tokens = torch.arange(rank * ROWS, (rank + 1) * ROWS)
    at = torch.arange(rank * ROWS * FEATURES, (rank + 1) * ROWS * FEATURES).view(ROWS, FEATURES)
    x = (at * 7919 % 4093).float() / 4093 - 0.5
    weights = torch.tensor([0.625, 0.375]).repeat(ROWS, 1)
    best = tokens * 7919 % 4093 % EXPERTS
    expert_nk = torch.stack([best, (best + 1 + tokens % (EXPERTS - 1)) % EXPERTS], dim=1)

    def forward(x, weights):
        rows, _, kept = dispatch(x, expert_nk, EXPERTS // options.ranks, None)
        return combine(rows, weights, kept, None)

    def both_ways():
        leaves = [x.detach().requires_grad_(), weights.detach().requires_grad_()]
        y = forward(*leaves)
        y.backward(y.detach())
        return y.detach()

    @torch.no_grad()
    def one_way():
        return forward(x, weights)

    def step():
        started = time.perf_counter()
        y = both_ways() if options.travel == "backward" else one_way()
        seconds = time.perf_counter() - started
        return (x * y).mean().item(), seconds

    def take(_sequences: int, steps: int) -> list:
        dist.barrier()
        return [step() for _ in range(steps)]

    serve_turns(rank, options.ranks, take)


# ---------------------------------------------------------------------------------------------------------------------
# Training


def divided(whole, rank: int, ranks: int, group):
    """This rank's experts of hand_written.Experts."""
    import torch

    class Divided(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = torch.nn.Parameter(whole.gate_up_proj.detach().chunk(ranks)[rank].clone())
            self.down_proj = torch.nn.Parameter(whole.down_proj.detach().chunk(ranks)[rank].clone())

        def forward(self, x_nh, expert_nk, weight_nk):
            rows, counts, kept = dispatch(x_nh, expert_nk, len(self.down_proj), group)
            y = whole.apply_experts(rows, counts, self.gate_up_proj, self.down_proj)
            return combine(y, weight_nk, kept, group)

    return Divided()


def train(rank: int, options):
    import tiny
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    tiny.CONFIG["num_experts"] = EXPERTS
    from hand_written import HandWritten

    if rank == 0:
        tiny.export_weights(tiny.initial_weights(seed=0), options.folder)
    dist.barrier()
    model = HandWritten(grouped=True)
    model.load_state_dict(tiny.read_weights(options.folder))
    # Not the group of DDP, whose reductions may start meanwhile.
    group = dist.new_group()
    for layer in model.model.layers:
        layer.mlp.experts = divided(layer.mlp.experts, rank, options.ranks, group)
    named = dict(model.named_parameters())
    names = [name for name in named if ".experts." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    experts = [named.pop(name) for name in names]
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = tiny.adamw(model.parameters())
    tokens = tiny.synthetic_tokens(options.windows * tiny.TOKENS + 1, tiny.CONFIG["vocab_size"])
    used = 0

    def update():
        # DDP has averaged the others over ranks.
        torch._foreach_div_([weight.grad for weight in experts], options.ranks)
        norm_of = torch.nn.utils.get_total_norm
        square = norm_of([weight.grad for weight in experts]) ** 2
        dist.all_reduce(square)
        norm = (norm_of([weight.grad for weight in named.values()]) ** 2 + square).sqrt()
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), tiny.MAX_GRAD_NORM, norm, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def rows(sequences: int):
        """This rank's rows of the next batch."""
        nonlocal used
        own = sequences // options.ranks
        batch = tiny.windows(tokens, used + rank * own, own)
        used += sequences
        return batch

    def step(ids, labels):
        started = time.perf_counter()
        loss = model(ids, labels)
        loss.backward()
        update()
        return loss.detach(), time.perf_counter() - started

    def take(sequences: int, steps: int) -> list:
        batches = [rows(sequences) for _ in range(steps)]
        dist.barrier()
        done = [step(*batch) for batch in batches]
        losses = torch.stack([loss for loss, _ in done])
        dist.all_reduce(losses)
        return list(zip((losses / options.ranks).tolist(), (seconds for _, seconds in done)))

    serve_turns(rank, options.ranks, take)


if __name__ == "__main__":
    main()
