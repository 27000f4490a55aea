"""tiny in idiomatic torch: sorted tokens, one matrix product per expert, SDPA.

Parameters have the names and shapes of transformers 5, so both load the same weights.
Legend: B sequences, T tokens, N = B T, H width, D head dimension, E experts, K experts per token, F expert width.
"""

import torch
import torch.nn.functional as F
from torch import nn
from tiny import CONFIG


class Norm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), CONFIG["rms_norm_eps"])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, self.head_dim = CONFIG["hidden_size"], CONFIG["head_dim"]
        queries = CONFIG["num_attention_heads"] * self.head_dim
        keys = CONFIG["num_key_value_heads"] * self.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.q_norm = Norm(self.head_dim)
        self.k_norm = Norm(self.head_dim)

    def forward(self, x_bth, rotation):
        heads = (*x_bth.shape[:2], -1, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x_bth).view(heads)).transpose(1, 2), rotation)
        k = rotate(self.k_norm(self.k_proj(x_bth).view(heads)).transpose(1, 2), rotation)
        v = self.v_proj(x_bth).view(heads).transpose(1, 2)

        out = F.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


def rotate(x, rotation):
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def rotation(tokens: int, device):
    """cos and sin [T, D / 2]."""
    head_dim = CONFIG["head_dim"]
    frequencies = CONFIG["rope_theta"] ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float32, device=device), frequencies)
    return angles.cos(), angles.sin()


class Experts(nn.Module):
    def __init__(self, grouped: bool):
        super().__init__()
        hidden, inner, experts = CONFIG["hidden_size"], CONFIG["moe_intermediate_size"], CONFIG["num_experts"]
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, inner))
        self.apply_experts = grouped_experts if grouped else looped_experts

    def forward(self, x_nh, expert_nk, weight_nk):
        slots = expert_nk.flatten()
        order = slots.argsort(stable=True)
        token = order // expert_nk.shape[1]
        counts = torch.bincount(slots, minlength=len(self.down_proj))

        y = self.apply_experts(x_nh[token], counts, self.gate_up_proj, self.down_proj)
        y = y * weight_nk.flatten()[order, None]
        return torch.zeros_like(x_nh).index_add(0, token, y.to(x_nh.dtype))


@torch.compiler.disable
def looped_experts(x, counts, gate_up_proj, down_proj):
    """One product per expert. torch.compile skips it, because its sizes change every step."""
    parts = []
    for expert, rows in enumerate(x.split(counts.tolist())):
        gate, up = F.linear(rows, gate_up_proj[expert]).chunk(2, dim=-1)
        parts.append(F.linear(F.silu(gate) * up, down_proj[expert]))
    return torch.cat(parts)


def grouped_experts(x, counts, gate_up_proj, down_proj):
    """All experts in one call with sizes on the device, as in transformers 5."""
    offsets = counts.cumsum(0, dtype=torch.int32)
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    product = torch.nn.functional.grouped_mm

    gate_up = product(x.to(dtype), gate_up_proj.to(dtype).transpose(1, 2), offs=offsets)
    gate, up = gate_up.chunk(2, dim=-1)
    return product(F.silu(gate) * up, down_proj.to(dtype).transpose(1, 2), offs=offsets)


class SparseMlp(nn.Module):
    def __init__(self, grouped: bool):
        super().__init__()
        self.gate = nn.Linear(CONFIG["hidden_size"], CONFIG["num_experts"], bias=False)
        self.experts = Experts(grouped)

    def forward(self, x_bth):
        x_nh = x_bth.flatten(0, 1)
        probability = self.gate(x_nh).softmax(-1, dtype=torch.float32)
        weight_nk, expert_nk = probability.topk(CONFIG["num_experts_per_tok"], dim=-1)
        weight_nk = weight_nk / weight_nk.sum(-1, keepdim=True)
        return self.experts(x_nh, expert_nk, weight_nk).view_as(x_bth)


class Layer(nn.Module):
    def __init__(self, grouped: bool):
        super().__init__()
        self.input_layernorm = Norm(CONFIG["hidden_size"])
        self.self_attn = Attention()
        self.post_attention_layernorm = Norm(CONFIG["hidden_size"])
        self.mlp = SparseMlp(grouped)

    def forward(self, x_bth, rotation):
        x_bth = x_bth + self.self_attn(self.input_layernorm(x_bth), rotation)
        return x_bth + self.mlp(self.post_attention_layernorm(x_bth))


class Decoder(nn.Module):
    def __init__(self, grouped: bool):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer(grouped) for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm(CONFIG["hidden_size"])


class HandWritten(nn.Module):
    """Returns the mean cross-entropy of labels [B, T], aligned with input_ids [B, T]."""

    def __init__(self, grouped: bool):
        super().__init__()
        self.model = Decoder(grouped)
        self.lm_head = nn.Linear(CONFIG["hidden_size"], CONFIG["vocab_size"], bias=False)

    def forward(self, input_ids, labels):
        x_bth = self.model.embed_tokens(input_ids)
        turn = rotation(input_ids.shape[1], input_ids.device)
        for layer in self.model.layers:
            x_bth = layer(x_bth, turn)
        logits = self.lm_head(self.model.norm(x_bth))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
