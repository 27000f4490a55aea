#!/usr/bin/env python3
"""Writes tests/parity/adapters: a tiny Llama, and what PEFT computes when it trains low-rank updates of it.

    make_adapters.py make [--hidden 32] [--layers 2] [--seed 23]
    make_adapters.py check ADAPTER NATS    compares PEFT's loss of an adapter that meshgrad saved with NATS per token

It trains on the batches of make_finetune.py. `check` runs in the folder that the adapter's base model is relative to.

Legend: S steps, B sequences, T tokens.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from make_finetune import BETAS, BYTE_TOKENIZER, EPS, MAX_GRAD_NORM, WEIGHT_DECAY, evaluation, loss_of
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent.resolve()
FOLDER = HERE / "adapters"

# As in tests/all/adapters.rs.
LEARNING_RATE = 2e-2
ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
CASES = {
    "all": {"r": 4, "lora_alpha": 6, "target_modules": ATTENTION + MLP},
    "some": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj", "up_proj"], "use_rslora": True},
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = arguments.add_subparsers(dest="command", required=True)
    make_command = commands.add_parser("make")
    make_command.add_argument("--hidden", type=int, default=32)
    make_command.add_argument("--layers", type=int, default=2)
    make_command.add_argument("--seed", type=int, default=23)
    check_command = commands.add_parser("check")
    check_command.add_argument("adapter", type=Path)
    check_command.add_argument("nats", type=float)
    options = arguments.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if options.command == "check":
        check(options.adapter, options.nats)
        return
    FOLDER.mkdir(exist_ok=True)
    os.chdir(FOLDER)  # so that adapters name their base `model`
    start(options)
    for name, case in CASES.items():
        train(name, case, options.seed)


def start(options):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": 264,
        "hidden_size": options.hidden,
        "intermediate_size": 3 * options.hidden // 2,
        "num_hidden_layers": options.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": 260,
        "eos_token_id": [256, 261],
    }
    model_folder = Path("model")
    model_folder.mkdir(exist_ok=True)
    (model_folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (model_folder / "tokenizer.json").write_bytes(BYTE_TOKENIZER.read_bytes())
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_folder))
    random = np.random.default_rng(options.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = random.standard_normal(tuple(parameter.shape))
            value = 1.0 + 0.1 * value if name.endswith("norm.weight") else 0.2 * value
            parameter.copy_(torch.from_numpy(value))
    tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, model_folder / "model.safetensors", metadata={"format": "pt"})


def load(folder="model"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()


def train(name, case, seed):
    torch.manual_seed(seed)
    model = get_peft_model(load(), LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **case))
    model.save_pretrained(Path(name) / "start")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)

    steps = []
    batches = load_file(HERE / "finetune" / "batches.safetensors")  # [S, B, T]
    for input_ids, labels in zip(batches["input_ids"], batches["labels"]):
        loss = loss_of(model, input_ids, labels) / labels.numel()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})

    model.save_pretrained(Path(name) / "trained")
    for card in Path(name).glob("*/README.md"):
        card.unlink()
    nats = evaluation(model.eval())["nats_per_token"]
    merged = evaluation(model.merge_and_unload().eval())["nats_per_token"]
    expected = {"steps": steps, "nats_per_token": nats, "merged_nats_per_token": merged}
    (Path(name) / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(name, steps[0], steps[-1], nats, merged)


def check(adapter, nats):
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = PeftModel.from_pretrained(load(base), adapter)
    theirs = evaluation(model.eval())["nats_per_token"]
    print(f"PEFT computes {theirs:.6f} nats per token, meshgrad {nats:.6f}")
    if abs(theirs - nats) > 2e-5 * theirs:
        sys.exit(1)


if __name__ == "__main__":
    main()
