#!/usr/bin/env python3
"""Trains a dense Qwen3 of transformers in one process, or under torch's pipeline schedules on gloo, and serves requests.

    pipeline.py --folder FOLDER --schedule one|1f1b|zbv [--ranks 2] [--threads 1]

A request {"sequences": 16, "steps": N} runs N steps of AdamW without clipping, each of 8 microbatches of 2 sequences; the
answer has their losses and seconds. The first process to start writes the model to FOLDER if it is not there. The model
is transformers' own; the schedules and all communication are torch's. The layers are divided evenly: 1f1b has one stage
per rank, zbv two in a V. Each rank has --threads threads. The time of a step is that of the slowest rank; a barrier
precedes it. benches/pipeline.rs runs this.

Legend: M microbatches, B sequences, T tokens.
"""

import argparse
import time
from pathlib import Path

from ranks import launch, serve_turns
from tensor_parallel import write_once

M, B, T = 8, 2, 128
CONFIG = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": T,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
STAGES_PER_RANK = {"one": 1, "1f1b": 1, "zbv": 2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--schedule", choices=tuple(STAGES_PER_RANK), required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    options.stages = options.ranks * STAGES_PER_RANK[options.schedule]
    launch(run, options)


def run(rank: int, options):
    import tiny
    import torch
    import torch.distributed as dist

    write_once(rank, options, CONFIG)
    parts = {stage: part(options, stage) for stage in own_stages(rank, options)}
    optimizer = tiny.adamw(parameter for it in parts.values() for parameter in it.parameters())

    pass_all = one_process(parts[0]) if options.schedule == "one" else scheduled(parts, options)
    ids, labels = batch()

    def step() -> list:
        if options.ranks > 1:
            dist.barrier()
        started = time.perf_counter()
        losses = pass_all(ids, labels)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - started
        return [sum(loss.item() for loss in losses), seconds]

    def take(_sequences: int, steps: int) -> list:
        done = torch.tensor([step() for _ in range(steps)], dtype=torch.float64)
        if options.ranks > 1:
            # Only the rank of the last stage has a loss.
            dist.all_reduce(done, dist.ReduceOp.MAX)
        return done.tolist()

    serve_turns(rank, options.ranks, take)


def own_stages(rank: int, options) -> list[int]:
    if options.schedule == "zbv":
        return [rank, options.stages - 1 - rank]
    return [rank]


def part(options, stage: int):
    """One stage: transformers' model without the modules of other stages."""
    import torch
    import transformers
    from torch import nn

    model = transformers.Qwen3ForCausalLM.from_pretrained(options.folder, dtype=torch.float32).train()
    each = len(model.model.layers) // options.stages
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


def loss_of(logits, targets):
    """The microbatch's share of the mean over all labels of a step."""
    import torch.nn.functional as F

    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (M * B * T)


def one_process(model):
    def pass_all(ids, labels) -> list:
        losses = []
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
    create, of = (ScheduleZBVZeroBubble, stages) if options.schedule == "zbv" else (Schedule1F1B, stages[0])
    schedule = create(of, M, loss_fn=loss_of, scale_grads=False)

    def pass_all(ids, labels) -> list:
        losses = []
        arg_mbs = [(microbatch,) for microbatch in ids]
        schedule.step(arg_mbs=arg_mbs, target_mbs=list(labels), losses=losses, return_outputs=False)
        return losses

    return pass_all


def batch():
    """ids and labels [M, B, T]; labels are shifted by one."""
    import torch

    tokens = torch.tensor([(at * 7919 + at // 3) % CONFIG["vocab_size"] for at in range(M * B * T + 1)])
    return tokens[:-1].reshape(M, B, T), tokens[1:].reshape(M, B, T)


if __name__ == "__main__":
    main()
