"""The configuration `tiny`, its initial weights, training tokens and optimizer, shared by all implementations.

tiny is a Qwen3-MoE of 9,185,792 parameters. Initial weights are normal with standard deviation 0.02, norms are 1. They
are exported as a Hugging Face folder for other programs.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 256,
    "mlp_only_layers": [],
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 4096,
}

BATCH, TOKENS = 8, 256
BETAS, EPS, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0
LEARNING_RATE = 1e-3


# ---------------------------------------------------------------------------------------------------------------------
# Weights


def shapes() -> dict[str, tuple[int, ...]]:
    """Parameter shapes as in transformers 5: experts fused, gate and up in one tensor [E, 2F, H]."""
    c = CONFIG
    hidden, inner, experts = c["hidden_size"], c["moe_intermediate_size"], c["num_experts"]
    queries, keys = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]

    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (c["head_dim"],),
        "self_attn.k_norm.weight": (c["head_dim"],),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate.weight": (experts, hidden),
        "mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
        "mlp.experts.down_proj": (experts, hidden, inner),
    }
    all_shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for index in range(c["num_hidden_layers"]):
        all_shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return all_shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (c["vocab_size"], hidden)}


def initial_weights(seed: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes().items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape)
        else:
            value = random.standard_normal(shape, dtype=np.float32)
            weights[name] = torch.from_numpy(CONFIG["initializer_range"] * value)
    return weights


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Reads a safetensors file, or the one in a folder, with experts fused or separate."""
    stored = load_file(path / "model.safetensors" if path.is_dir() else path)
    weights = {}
    for name, shape in shapes().items():
        if name in stored:
            weights[name] = stored[name]
        elif name.endswith("gate_up_proj"):
            gate, up = (stack(stored, name, "gate_up_proj", part) for part in ("gate_proj", "up_proj"))
            weights[name] = torch.cat([gate, up], dim=1)
        else:
            weights[name] = stack(stored, name, "down_proj", "down_proj")
        assert weights[name].shape == shape, f"{name}: {tuple(weights[name].shape)}, expected {shape}"
    return weights


def stack(stored: dict, name: str, fused: str, part: str) -> torch.Tensor:
    prefix = name.removesuffix(fused)
    return torch.stack([stored[f"{prefix}{expert}.{part}.weight"] for expert in range(CONFIG["num_experts"])])


def export_weights(weights: dict[str, torch.Tensor], folder: Path):
    """Writes a Hugging Face folder with separate experts, as on the hub."""
    stored = {}
    for name, value in weights.items():
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            for expert, gate_up in enumerate(value):
                gate, up = gate_up.chunk(2)
                stored[f"{prefix}{expert}.gate_proj.weight"] = gate.contiguous()
                stored[f"{prefix}{expert}.up_proj.weight"] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            for expert, down in enumerate(value):
                stored[f"{prefix}{expert}.down_proj.weight"] = down.contiguous()
        else:
            stored[name] = value.contiguous()

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_file({name: value.clone() for name, value in stored.items()}, folder / "model.safetensors", {"format": "pt"})


# ---------------------------------------------------------------------------------------------------------------------
# Tokens


def synthetic_tokens(count: int, vocab_size: int) -> np.ndarray:
    """A token stream that is easy to generate in any language and has structure to learn.

    s_0 = 42; s_{n+1} = 6364136223846793005 s_n + 1442695040888963407 mod 2^64; r_n = s_n >> 33, for n = 1, 2, ...
    t_0 = 0;  t_n = (5 t_{n-1} + 7 + (r_n >> 3) mod 4) mod V   if r_n mod 8 < 6
              t_n = (r_n >> 3) mod V                           otherwise

    So three of four tokens have one of four successors. The stream is t_1, t_2, ...
    """
    state, token = 42, 0
    tokens = np.empty(count, dtype=np.int64)
    for index in range(count):
        state = (6364136223846793005 * state + 1442695040888963407) % 2**64
        draw = state >> 33
        if draw % 8 < 6:
            token = (5 * token + 7 + (draw >> 3) % 4) % vocab_size
        else:
            token = (draw >> 3) % vocab_size
        tokens[index] = token
    return tokens


def read_tokens(path: Path, width: str) -> np.ndarray:
    """Reads a file of little-endian u16 or u32."""
    tokens = np.fromfile(path, dtype={"u16": "<u2", "u32": "<u4"}[width]).astype(np.int64)
    if len(tokens) <= TOKENS:
        raise SystemExit(f"{path} has {len(tokens)} tokens, but one window needs {TOKENS + 1}")
    if tokens.max() >= CONFIG["vocab_size"]:
        raise SystemExit(f"{path} has token {tokens.max()}, but the last token of the vocabulary is {CONFIG['vocab_size'] - 1}")
    return tokens


def batch(tokens: np.ndarray, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """input_ids and labels [B, T] of a step (from 0), which has windows k B .. k B + B - 1."""
    return windows(tokens, step * BATCH, BATCH)


def windows(tokens: np.ndarray, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """input_ids and labels [count, T]. Window w is tokens w T .. w T + T; its labels are shifted by one.

    Windows wrap around at the end of the stream.
    """
    available = (len(tokens) - 1) // TOKENS
    starts = [window % available * TOKENS for window in range(first, first + count)]
    rows = np.stack([tokens[start : start + TOKENS + 1] for start in starts])
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


# ---------------------------------------------------------------------------------------------------------------------
# Optimizer


def adamw(parameters, learning_rate: float = LEARNING_RATE) -> torch.optim.AdamW:
    """torch's fused AdamW, its fastest implementation. Weights of one dim, such as norms, do not decay."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, eps=EPS, fused=True)


def update(model, optimizer) -> torch.Tensor:
    """Clips the gradients, updates the weights and clears the gradients. Returns the norm before clipping."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
