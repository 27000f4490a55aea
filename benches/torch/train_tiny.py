#!/usr/bin/env python3
"""Trains tiny with torch and prints its speed as one JSON object.

    train_tiny.py --impl hf|eager|compile [--dtype f32|bf16] [--steps 10] [--warmup 3] [--threads 2]
                  [--init FOLDER_OR_FILE] [--export-init FOLDER] [--data tokens.bin [--data-width u16|u32]] [--json OUT]
                  [--serve]

hf is transformers as shipped, eager is hand_written.py, compile the same under torch.compile. All three use torch's fused
AdamW and foreach clipping, its fastest implementations.
"""

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

PARTS = ("forward", "backward", "optimizer")


def main():
    options = parse()
    # torch reads these once, when it is imported.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    global torch, tiny, serve, versions
    import tiny
    import torch
    from serve import serve, versions

    torch.set_num_threads(options.threads)
    weights = tiny.read_weights(options.init) if options.init else tiny.initial_weights(options.seed)
    if options.export_init:
        tiny.export_weights(weights, options.export_init)
    if options.steps == 0:
        return

    model = build(options, weights)
    optimizer = tiny.adamw(model.parameters(), options.learning_rate)
    needed = (options.warmup + max(options.steps, 64)) * tiny.BATCH * tiny.TOKENS + 1
    if options.data:
        tokens = tiny.read_tokens(options.data, options.data_width)
    else:
        tokens = tiny.synthetic_tokens(needed, tiny.CONFIG["vocab_size"])

    losses, norms, seconds = [], [], []

    def run(steps):
        for step in range(len(losses), len(losses) + steps):
            loss, norm, parts = train_step(model, optimizer, tiny.batch(tokens, step), options.dtype)
            losses.append(loss)
            norms.append(norm)
            seconds.append(parts)

    def answer(request):
        done = len(losses)
        run(request["steps"])
        return {"loss": losses[done:], "part_s": seconds[done:], "peak_rss_bytes": peak_rss()}

    run(options.warmup)
    if options.serve:
        return serve(answer, loss=losses)

    run(options.steps)
    report = summary(options, losses, norms, seconds[options.warmup :])
    print(json.dumps(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--impl", choices=("hf", "eager", "compile"), default="hf")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16: autocast over f32 parameters")
    parser.add_argument("--experts", choices=("loop", "grouped"), default="loop", help="for eager and compile")
    parser.add_argument("--steps", type=int, default=10, help="timed steps; 0 only exports")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="constant")
    parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights")
    parser.add_argument("--init", type=Path, help="initial weights")
    parser.add_argument("--export-init", type=Path, help="write the initial weights as a Hugging Face folder")
    parser.add_argument("--data", type=Path, help="token file (default: tiny.synthetic_tokens)")
    parser.add_argument("--data-width", choices=("u16", "u32"), default="u16")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    parser.add_argument("--serve", action="store_true", help="after warm-up serve requests {\"steps\": N}, one per line")
    options = parser.parse_args()
    if min(options.steps, options.warmup) < 0 or options.threads < 1:
        sys.exit("--steps and --warmup must be at least 0, --threads at least 1")
    return options


def build(options, weights):
    """Returns a function of aligned (input_ids, labels) that computes the loss."""
    if options.impl == "hf":
        return build_hf(weights)

    from hand_written import HandWritten

    model = HandWritten(grouped=options.experts == "grouped")
    model.load_state_dict(weights)
    return torch.compile(model) if options.impl == "compile" else model


def build_hf(weights):
    import transformers

    transformers.logging.set_verbosity_error()
    settings = {key: value for key, value in tiny.CONFIG.items() if key not in ("architectures", "model_type")}
    config = transformers.Qwen3MoeConfig(**settings)
    model = transformers.Qwen3MoeForCausalLM(config)
    model.load_state_dict(weights)

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, input_ids, labels):
            # transformers shifts labels unless shift_labels is passed.
            return self.inner(input_ids=input_ids, labels=labels, shift_labels=labels, use_cache=False).loss

    return Loss().train()


def train_step(model, optimizer, batch, dtype):
    started = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else nullcontext():
        loss = model(*batch)
    after_forward = time.perf_counter()

    loss.backward()
    after_backward = time.perf_counter()

    norm = tiny.update(model, optimizer)
    finished = time.perf_counter()

    parts = (after_forward - started, after_backward - after_forward, finished - after_backward)
    return loss.item(), norm.item(), parts


def summary(options, losses, norms, seconds):
    step_seconds = [sum(parts) for parts in seconds]
    rates = [tiny.BATCH * tiny.TOKENS / total for total in step_seconds]
    return {
        "bench": "train_tiny",
        "impl": options.impl,
        "experts": "as shipped" if options.impl == "hf" else options.experts,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "steps": options.steps,
        "warmup": options.warmup,
        "tokens_per_s": {
            "median": round(statistics.median(rates), 1),
            "min": round(min(rates), 1),
            "max": round(max(rates), 1),
        },
        "step_ms": [round(1e3 * total, 2) for total in step_seconds],
        "part_ms": {
            name: round(1e3 * statistics.median(parts[index] for parts in seconds), 2)
            for index, name in enumerate(PARTS)
        },
        "peak_rss_bytes": peak_rss(),
        "loss": [round(loss, 6) for loss in losses],
        "grad_norm": [round(norm, 6) for norm in norms],
        "data": str(options.data) if options.data else "synthetic",
        "init": str(options.init) if options.init else f"seed {options.seed}",
        "versions": versions(),
    }


def peak_rss():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return None


if __name__ == "__main__":
    main()
