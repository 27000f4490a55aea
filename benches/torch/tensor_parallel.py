#!/usr/bin/env python3
"""Trains a dense Qwen3 of transformers on one process, or under torch's tensor parallelism on gloo, and serves requests.

    tensor_parallel.py --folder FOLDER [--ranks 2] [--threads 1]

A request {"sequences": 4, "steps": N} runs N steps of AdamW without clipping; the answer has their losses and seconds. The first process to
start writes the model to FOLDER if it is not there. The model is transformers' own; all communication is that of torch's
parallel styles and loss_parallel. Each rank has --threads threads. benches/tensor_parallel.rs runs it.

Legend: B sequences, T tokens.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

from ranks import launch, serve_turns

B, T = 4, 256
CONFIG = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": T,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    launch(run, parser.parse_args())


def write_once(rank: int, options, config: dict):
    """The model of `config` with random weights in --folder, if no other process has written it."""
    import torch
    import torch.distributed as dist
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if rank == 0 and not (options.folder / "config.json").exists():
        torch.manual_seed(0)
        options.folder.mkdir(parents=True, exist_ok=True)
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config))
        model.save_pretrained(options.folder)
    if options.ranks > 1:
        dist.barrier()


def run(rank: int, options):
    import torch
    import torch.distributed as dist
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    write_once(rank, options, CONFIG)
    model = transformers.Qwen3ForCausalLM.from_pretrained(options.folder, dtype=torch.float32).train()
    if options.ranks > 1:
        mesh = init_device_mesh("cpu", (options.ranks,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, plan(model))
    optimizers = adamw(model)
    ids, labels = batch()

    def step():
        started = time.perf_counter()
        with loss_parallel() if options.ranks > 1 else nullcontext():
            loss = loss_of(model, ids, labels)
            loss.backward()
        update(model, optimizers)
        return whole(loss.detach()).item(), time.perf_counter() - started

    def take(_sequences: int, steps: int) -> list:
        if options.ranks > 1:
            dist.barrier()
        return [step() for _ in range(steps)]

    serve_turns(rank, options.ranks, take)


def batch():
    import torch

    numbers = [at * 7919 % 4093 + at * at % 3 for at in range(B * T + 1)]
    tokens = torch.tensor(numbers)
    return tokens[:-1].reshape(B, T), tokens[1:].reshape(B, T)


def loss_of(model, ids, labels):
    import torch.nn.functional as F

    # Computed here, because transformers shifts labels and averages.
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def adamw(model) -> list:
    """AdamW's fused kernel takes either sharded or plain parameters."""
    import tiny

    parameters = list(model.parameters())
    sharded = [parameter for parameter in parameters if hasattr(parameter, "placements")]
    plain = [parameter for parameter in parameters if not hasattr(parameter, "placements")]
    return [tiny.adamw(group) for group in (sharded, plain) if group]


def update(model, optimizers: list):
    for parameter in model.parameters():
        # A gradient may be partial where its parameter is replicated.
        if hasattr(parameter, "placements"):
            parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def plan(model) -> dict:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    # Each rank normalizes its heads, and the gradients of the weights are summed.
    by_head = SequenceParallel(sequence_dim=2, use_local_output=True)
    layer = {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.q_norm": by_head,
        "self_attn.k_norm": by_head,
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    ends = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(use_local_output=False),
    }
    layers = range(len(model.model.layers))
    return ends | {f"model.layers.{at}.{name}": style for at in layers for name, style in layer.items()}


if __name__ == "__main__":
    main()
