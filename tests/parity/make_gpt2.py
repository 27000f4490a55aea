#!/usr/bin/env python3
"""Writes tests/parity/gpt2: a tiny GPT-2 with the logits, loss and gradients that transformers computes.

    make_gpt2.py [--seed N] [--layers N] [--heads N] [--width N] [--tokens N] [--vocabulary N] [FOLDER]

The fixture of examples/10-gpt2.rs. With the versions of requirements.txt and no arguments it is reproduced bit for bit.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers
from cases import Case
from make_fixtures import batch, expectation, load, new_model, save_weights, verify_conditioning
from safetensors.torch import save_file


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "gpt2")
    arguments.add_argument("--seed", type=int, default=301)
    arguments.add_argument("--layers", type=int, default=3)
    arguments.add_argument("--heads", type=int, default=3)
    arguments.add_argument("--width", type=int, default=24)
    arguments.add_argument("--tokens", type=int, default=13)
    arguments.add_argument("--vocabulary", type=int, default=59)
    options = arguments.parse_args()

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "layer_norm_epsilon": 1e-05,
        "n_embd": options.width,
        "n_head": options.heads,
        "n_layer": options.layers,
        "n_positions": 2 * options.tokens,
        "vocab_size": options.vocabulary,
    }
    case = Case(name="gpt2", tokens=options.tokens, seed=options.seed, experts="fused", config=config)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    random = np.random.default_rng(options.seed)
    model = new_model(options.folder)
    randomise(model, random)
    input_ids, labels = batch(model.config, case, random)
    weights = {name: tensor.contiguous().clone() for name, tensor in model.named_parameters()}
    save_weights(weights, options.folder, shards=1)
    save_file({"input_ids": input_ids, "labels": labels}, options.folder / "input.safetensors")

    model = load(options.folder)
    expected = expectation(model, input_ids, labels, case)
    verify_conditioning(model, input_ids, labels, expected, case)
    save_file(expected, options.folder / "expected.safetensors")


@torch.no_grad()
def randomise(model, random: np.random.Generator):
    """Gives every parameter values far from its initial ones. Weights of layers are [in, out]."""
    for name, parameter in model.named_parameters():
        value = random.standard_normal(tuple(parameter.shape))
        if name.endswith(".bias"):
            value = 0.4 * value
        elif ".ln_" in name:
            value = 1.0 + 0.5 * value
        elif "wte" in name or "wpe" in name:
            value = 0.5 * value
        else:
            value = 1.2 * value / np.sqrt(parameter.shape[0])
        parameter.copy_(torch.from_numpy(value))


if __name__ == "__main__":
    main()
