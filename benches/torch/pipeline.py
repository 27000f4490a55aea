#!/usr/bin/env python3
"""Trains a dense Qwen3 of transformers in one process, or under torch's pipeline schedules on gloo.

    pipeline.py --schedule one [--threads 2]
    pipeline.py --schedule 1f1b|zbv [--ranks 2] [--threads 1]

A step clears the gradients, runs the forward and backward passes of M microbatches and AdamW without clipping. All steps
have the same tokens, from the stream that README.md describes. One process accumulates the gradients of the same
microbatches. The layers are divided evenly: 1f1b has one stage per rank, zbv two in a V.

Prints one JSON object. The time of a step is that of the slowest rank; a barrier precedes each step, outside of its
time. `loss` is the mean over the labels of a step, per step and with warm-up.

Legend: M microbatches, B sequences, T tokens.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from ranks import launch

STAGES_PER_RANK = {"one": 1, "1f1b": 1, "zbv": 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--schedule", choices=tuple(STAGES_PER_RANK), required=True)
    parser.add_argument("--ranks", type=int, default=2, help="ignored for one process")
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=2, help="of a microbatch")
    parser.add_argument("--tokens", type=int, default=128, help="of a sequence")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the measured ones")
    parser.add_argument("--steps", type=int, default=20, help="measured steps")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    if options.schedule == "one":
        options.ranks = 1
    options.stages = options.ranks * STAGES_PER_RANK[options.schedule]
    if options.layers % options.stages:
        parser.error(f"{options.layers} layers cannot be divided evenly into {options.stages} stages")
    launch(run, options)


def run(rank: int, options):
    import tiny
    import torch
    import torch.distributed as dist

    parts = {stage: part(options, stage) for stage in own_stages(rank, options)}
    optimizer = tiny.adamw(parameter for it in parts.values() for parameter in it.parameters())
    pass_all = one_process(parts[0]) if options.schedule == "one" else scheduled(parts, options)
    ids, labels = batch(options)

    def step() -> tuple[float, float]:
        if options.ranks > 1:
            dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        losses = pass_all(ids, labels)
        optimizer.step()
        seconds = time.perf_counter() - started
        return seconds, sum(loss.item() for loss in losses)

    steps = torch.tensor([step() for _ in range(options.warmup + options.steps)], dtype=torch.float64)
    seconds, loss = steps[options.warmup :, 0].contiguous(), steps[:, 1].contiguous()
    if options.ranks > 1:
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        # Only the rank of the last stage has the loss.
        dist.all_reduce(loss)
    if rank == 0:
        report(options, seconds.tolist(), loss.tolist())


def own_stages(rank: int, options) -> list[int]:
    if options.schedule == "zbv":
        return [rank, options.stages - 1 - rank]
    return [rank]


def part(options, stage: int):
    """One stage: transformers' model without the modules of other stages."""
    import torch
    import transformers
    from torch import nn

    transformers.logging.set_verbosity_error()
    # All stages, and all schedules, start from the same weights.
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.inner,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.head_dim,
        max_position_embeddings=options.tokens,
        tie_word_embeddings=False,
        attn_implementation=options.attention,
        dtype="float32",
    )
    model = transformers.Qwen3ForCausalLM(config).train()
    each = options.layers // options.stages
    first, last = stage == 0, stage == options.stages - 1
    model.model.layers = model.model.layers[stage * each : (stage + 1) * each]
    if not first:
        model.model.embed_tokens = nn.Identity()
    if not last:
        model.model.norm = model.lm_head = nn.Identity()

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            source = "input_ids" if first else "inputs_embeds"
            # The whole model's forward returns a view, which torch cannot detach after a split backward pass.
            hidden = self.model.model(**{source: x}, use_cache=False).last_hidden_state
            return self.model.lm_head(hidden)

    return Part()


def loss_function(labels: int):
    import torch.nn.functional as F

    def loss_of(logits, targets):
        """The microbatch's share of the mean over all labels of a step."""
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / labels

    return loss_of


def one_process(model):
    def pass_all(ids, labels) -> list:
        loss_of, losses = loss_function(labels.numel()), []
        for microbatch, targets in zip(ids, labels):
            loss = loss_of(model(microbatch), targets)
            loss.backward()
            losses.append(loss.detach())
        return losses

    return pass_all


def scheduled(parts: dict, options):
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble

    device = torch.device("cpu")
    stages = [PipelineStage(module, stage, options.stages, device) for stage, module in parts.items()]
    loss_of = loss_function(options.microbatches * options.sequences * options.tokens)
    create, of = (ScheduleZBVZeroBubble, stages) if options.schedule == "zbv" else (Schedule1F1B, stages[0])
    schedule = create(of, options.microbatches, loss_fn=loss_of, scale_grads=False)

    def pass_all(ids, labels) -> list:
        losses = []
        arg_mbs = [(microbatch,) for microbatch in ids]
        schedule.step(arg_mbs=arg_mbs, target_mbs=list(labels), losses=losses, return_outputs=False)
        return losses

    return pass_all


def batch(options):
    """ids and labels [M, B, T]; labels are shifted by one."""
    import tiny
    import torch

    shape = (options.microbatches, options.sequences, options.tokens)
    tokens = torch.from_numpy(tiny.synthetic_tokens(torch.Size(shape).numel() + 1, options.vocabulary))
    return tokens[:-1].reshape(shape), tokens[1:].reshape(shape)


def report(options, seconds: list, loss: list):
    import torch

    tokens = options.microbatches * options.sequences * options.tokens
    speeds = [tokens / each for each in seconds]
    found = {
        "name": f"torch, {options.schedule}, {options.ranks} x {options.threads} threads",
        "schedule": options.schedule,
        "ranks": options.ranks,
        "threads": options.threads,
        "attention": options.attention,
        "tokens_per_second": {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)},
        "step_seconds": seconds,
        "loss": loss,
        "torch": torch.__version__,
    }
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
