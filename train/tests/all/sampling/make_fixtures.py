"""Writes probabilities.json: logits (null for minus infinity), the tokens before, and for some options the
probabilities of the next token that transformers computes.

    python3 -m venv venv && venv/bin/pip install torch==2.15.0 transformers==5.23.0
    venv/bin/python make_fixtures.py

transformers chooses the processors and their order from a GenerationConfig, as in `generate`. Cases in which rounding
could decide whether a token is kept are left out.
"""

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
VOCABULARY = 16
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}

# Each option alone, pairs whose order matters, and all.
OPTIONS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 100},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"min_p": 0.4},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"temperature": 0.5, "top_p": 0.8},
    {"temperature": 2.0, "min_p": 0.2},
    {"temperature": 1.7, "repetition_penalty": 1.5},
    {"top_k": 4, "top_p": 0.7},
    {"top_p": 0.6, "min_p": 0.3},
    {"top_p": 0.8, "repetition_penalty": 2.0},
    {"temperature": 0.8, "top_k": 8, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
]


def model():
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, **sizes, **heads))


def probabilities(model, options, before, logits):
    """Softmax of the processed logits, in the dtype of `logits`."""
    config = GenerationConfig(do_sample=True, **{**NEUTRAL, **options})
    processors = model._get_logits_processor(config, input_ids_seq_length=len(before), device="cpu")
    names = [type(processor).__name__ for processor in processors]
    return torch.softmax(processors(torch.tensor([before]), logits[None].clone())[0], -1), names


def logits(kind, seed):
    values = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
    if kind == "ties":
        return values.round()
    if kind == "masked":
        values[::3] = -torch.inf
    return values


def main():
    torch.manual_seed(0)
    small, texts, orders, skipped = model(), [], set(), 0
    for seed, kind in enumerate(["random", "random", "ties", "ties", "masked"]):
        values = logits(kind, seed)
        before = torch.randint(VOCABULARY, (6,), generator=torch.Generator().manual_seed(seed)).tolist()
        cases = []
        for options in OPTIONS:
            single, names = probabilities(small, options, before, values)
            double, _ = probabilities(small, options, before, values.double())
            if ((single > 0) != (double > 0)).any():
                skipped += 1
                continue
            orders.add(" ".join(names))
            cases.append({"options": options, "probabilities": [float(f"{p:.10g}") for p in double.tolist()]})
        shown = [None if value.isinf() else value.item() for value in values]
        texts.append({"logits": shown, "before": before, "cases": cases})
    for order in sorted(orders):
        print(order)
    print(f"{sum(len(text['cases']) for text in texts)} cases, {skipped} left out")
    lines = json.dumps(texts).replace('{"logits', '\n{"logits').replace('{"options', '\n  {"options')
    (HERE / "probabilities.json").write_text(lines + "\n")


main()
