#!/usr/bin/env python3
"""Trains a dense Qwen3 of transformers on one process, or under torch's tensor parallelism on gloo, and serves requests.

    tensor_parallel.py --folder FOLDER [--ranks 2] [--threads 1]

A request {"steps": N} runs N steps of gradient descent; the answer has their losses and seconds. The first process to
start writes the model to FOLDER if it is not there. The model is transformers' own; all communication is that of torch's
parallel styles and loss_parallel. Each rank has --threads threads. benches/tensor_parallel.rs runs it.

Legend: B sequences, T tokens.
"""

import argparse
import os
import socket
import time
from contextlib import nullcontext
from pathlib import Path

B, T = 4, 256
LEARNING_RATE = 0.1
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
    options = parser.parse_args()
    # torch reads these once, when it is imported.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)

    import torch.multiprocessing as mp

    if not (options.folder / "config.json").exists():
        export(options.folder)
    port = free_port()
    others = [mp.get_context("spawn").Process(target=run, args=(rank, port, options)) for rank in range(1, options.ranks)]
    for process in others:
        process.start()
    run(0, port, options)
    for process in others:
        process.join()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def export(folder: Path):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    Qwen3ForCausalLM(Qwen3Config(**CONFIG)).save_pretrained(folder)


def run(rank: int, port: int, options):
    import torch
    import torch.distributed as dist
    import transformers
    from serve import serve
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.Qwen3ForCausalLM.from_pretrained(options.folder, dtype=torch.float32).train()
    if options.ranks > 1:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=options.ranks)
        mesh = init_device_mesh("cpu", (options.ranks,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, plan(model))
    ids, labels = batch()

    def step():
        started = time.perf_counter()
        with loss_parallel() if options.ranks > 1 else nullcontext():
            loss = loss_of(model, ids, labels)
            loss.backward()
        descend(model)
        return whole(loss.detach()).item() / (B * T), time.perf_counter() - started

    def steps(count: int) -> list:
        if options.ranks > 1:
            dist.barrier()
        return [step() for _ in range(count)]

    def answer(request):
        if options.ranks > 1:
            dist.broadcast(torch.tensor([request["steps"]]), 0)
        done = steps(request["steps"])
        return {"loss": [loss for loss, _ in done], "seconds": [seconds for _, seconds in done]}

    if rank == 0:
        serve(answer)
        if options.ranks > 1:
            dist.broadcast(torch.tensor([0]), 0)
    else:
        count = torch.tensor([0])
        while True:
            dist.broadcast(count, 0)
            if count.item() == 0:
                break
            steps(count.item())
    if options.ranks > 1:
        dist.destroy_process_group()


def batch():
    import torch

    numbers = [at * 7919 % 4093 + at * at % 3 for at in range(B * T + 1)]
    tokens = torch.tensor(numbers)
    return tokens[:-1].reshape(B, T), tokens[1:].reshape(B, T)


def loss_of(model, ids, labels):
    import torch.nn.functional as F

    # Computed here, because transformers shifts labels and averages.
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def descend(model):
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            # A gradient may be replicated or partial where its parameter is sharded.
            gradient = parameter.grad
            if hasattr(gradient, "redistribute"):
                gradient = gradient.redistribute(placements=parameter.placements)
            local(parameter).add_(local(gradient), alpha=-LEARNING_RATE / (B * T))
            parameter.grad = None


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


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
