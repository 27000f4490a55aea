#!/usr/bin/env python3
"""Trains a Qwen3-MoE with torch on a GPU: hand_written.py with another configuration, bf16 autocast over f32 parameters,
grouped_mm, SDPA, fused AdamW, clipping. Serves requests, one JSON object per line:

    {"steps": N} -> {"seconds": [mean seconds per step], "peak_bytes": B}

--run is a JSON object: {"model": {as config.json}, "batch": B, "tokens": T, "device": torch's name, "learning_rate": X,
"compiled": bool}. "compiled" selects torch.compile.
"""

import argparse
import json
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, type=json.loads)
    run = parser.parse_args().run

    import tiny
    import torch
    from serve import serve

    defaults = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6}
    tiny.CONFIG.clear()
    tiny.CONFIG.update(defaults | run["model"])  # before hand_written reads it
    from hand_written import HandWritten

    device = torch.device(run["device"])
    with device:
        model = HandWritten(grouped=True)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else torch.nn.init.ones_(parameter)
    trained = torch.compile(model) if run["compiled"] else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=run["learning_rate"], betas=tiny.BETAS, eps=tiny.EPS, fused=True)
    vocabulary = run["model"]["vocab_size"]
    ids = torch.arange(run["batch"] * run["tokens"], device=device) * 7919 % vocabulary
    ids = ids.view(run["batch"], run["tokens"])

    def step():
        with torch.autocast(device.type, torch.bfloat16):
            loss = trained(ids, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), tiny.MAX_GRAD_NORM, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def synchronize():
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def answer(request):
        synchronize()
        started = time.perf_counter()
        for _ in range(request["steps"]):
            step()
        synchronize()
        seconds = (time.perf_counter() - started) / request["steps"]
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        return {"seconds": [seconds], "peak_bytes": peak}

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    serve(answer, device=name, cuda=torch.version.cuda)


if __name__ == "__main__":
    main()
