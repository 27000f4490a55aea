#!/usr/bin/env python3
"""Writes tests/parity/finetune: a tiny model, and what transformers computes when it trains it.

    make_finetune.py start       writes the model that both fine-tune
    make_finetune.py losses      trains it on batches.safetensors with torch's AdamW, and evaluates it on text.txt

Between the two, `MESHGRAD_BLESS=1 cargo test -p meshgrad --test all same_batches` writes batches.safetensors, the
batches of meshgrad.

Legend: S steps, B sequences, T tokens.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

FOLDER = Path(__file__).parent / "finetune"
MODEL = FOLDER / "model"
BYTE_TOKENIZER = Path(__file__).parents[2] / "train/src/tokenizer/byte.json"
END_OF_TEXT = 256

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "float32",
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": 260,
    "eos_token_id": [256, 261],
}
GENERATION = {"bos_token_id": 260, "eos_token_id": [256, 261], "temperature": 0.7, "top_k": 20}

# As in tests/all/finetune.rs.
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, MAX_GRAD_NORM = 2e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
EVAL_TOKENS = 32


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    match sys.argv[1:]:
        case ["start"]:
            start()
        case ["losses"]:
            losses()
        case _:
            sys.exit(__doc__)


def start():
    MODEL.mkdir(parents=True, exist_ok=True)
    (MODEL / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (MODEL / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")
    (MODEL / "tokenizer.json").write_bytes(BYTE_TOKENIZER.read_bytes())
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL))
    random = np.random.default_rng(22)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = random.standard_normal(tuple(parameter.shape))
            value = 1.0 + 0.1 * value if name.endswith("norm.weight") else 0.1 * value
            parameter.copy_(torch.from_numpy(value))
    tensors = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, MODEL / "model.safetensors", metadata={"format": "pt"})


def load():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").train()


def loss_of(model, input_ids, labels):
    """The mean over labels that are aligned by position."""
    logits = model(input_ids=input_ids).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def losses():
    batches = load_file(FOLDER / "batches.safetensors")  # [S, B, T]
    model = load()
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)

    steps = []
    for input_ids, labels in zip(batches["input_ids"], batches["labels"]):
        loss = loss_of(model, input_ids, labels) / labels.numel()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})

    expected = {"steps": steps, "evaluation": evaluation(load().eval())}
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


@torch.no_grad()
def evaluation(model):
    """Every token of the text but the first, in windows of EVAL_TOKENS."""
    text = (FOLDER / "text.txt").read_bytes()
    ids = torch.tensor([*text, END_OF_TEXT])
    total = 0.0
    for first in range(0, len(ids) - 1, EVAL_TOKENS):
        window = ids[first : first + EVAL_TOKENS + 1]
        total += loss_of(model, window[None, :-1], window[None, 1:]).item()
    nats = total / (len(ids) - 1)
    return {
        "tokens": len(ids) - 1,
        "nats_per_token": nats,
        "perplexity": float(np.exp(nats)),
        "bits_per_byte": nats / np.log(2) * len(ids) / len(text),
    }


if __name__ == "__main__":
    main()
