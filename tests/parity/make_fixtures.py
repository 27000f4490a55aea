#!/usr/bin/env python3
"""Writes tests/parity/fixtures: tiny models with the logits, loss and gradients that transformers computes.

    make_fixtures.py [NAME ...]      writes the named cases, by default all
    make_fixtures.py --greedy [NAME ...]  writes only greedy.safetensors, the texts that the committed models continue
    make_fixtures.py --check         recomputes every case and compares with the committed files; writes nothing

Legend: B sequences, T tokens, V vocabulary, E experts, F expert hidden size, H model width.
"""

import argparse
import copy
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from cases import CASES, Case
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

BATCH = 2
IGNORED = -100
FIXTURES = Path(__file__).parent / "fixtures"

# The minimum distance between the probabilities of a chosen and a rejected expert, so that rounding cannot change routing.
ROUTING_MARGIN = 2e-3

# f32 and f64 must agree well within the tolerances of the parity test.
LOGITS_AGREE = 4e-6
ANGLE_AGREES = 1e-8
NORM_AGREES = 2e-5


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--check", action="store_true")
    arguments.add_argument("--greedy", action="store_true")
    options = arguments.parse_args()

    unknown = set(options.names) - {case.name for case in CASES}
    if unknown:
        sys.exit(f"unknown case: {', '.join(sorted(unknown))}")

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    chosen = [case for case in CASES if case.name in options.names or not options.names]
    if options.check:
        check(chosen)
        return

    if options.greedy:
        for case in chosen:
            save_greedy(FIXTURES / case.name, case)
        return

    for case in chosen:
        make(case, FIXTURES / case.name)
        print(f"{case.name:26} {folder_size(FIXTURES / case.name):>8} bytes")
    print(f"{'all':26} {folder_size(FIXTURES):>8} bytes")


def make(case: Case, folder: Path):
    """Writes one case. Seeds are tried in order until routing is clear of ties (and, if asked, one expert idle)."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*"):
        stale.unlink()
    (folder / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")

    for attempt in range(200):
        random = np.random.default_rng([case.seed, attempt])
        model = new_model(folder)
        randomise(model, case, random)
        input_ids, labels = batch(model.config, case, random)
        if routing_is_usable(model, input_ids, case):
            break
    else:
        sys.exit(f"{case.name}: no seed gives a usable routing")

    weights = hub_tensors(model.state_dict(), model.config, case)
    if case.further:
        weights[case.further] = torch.ones(2, 3)
    save_weights(as_first_written(weights, case) if case.old_names else weights, folder, case.shards)
    save_file({"input_ids": input_ids, "labels": labels}, folder / "input.safetensors")

    model = load(folder)
    verify_claims(model, case)
    expected = expectation(model, input_ids, labels, case)
    verify_conditioning(model, input_ids, labels, expected, case)
    save_file(expected, folder / "expected.safetensors")
    save_greedy(folder, case)


def save_greedy(folder: Path, case: Case):
    """Writes the first text up to its fourth token, continued by the likeliest tokens: greedy [1, T]."""
    model = load(folder).eval()
    prompt = load_file(folder / "input.safetensors")["input_ids"][:1, :4]
    model.generation_config.eos_token_id = None
    greedy = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=case.tokens - 4, pad_token_id=0
    )
    save_file({"greedy": greedy}, folder / "greedy.safetensors")


def check(cases: list[Case]):
    """Recomputes into a temporary folder and compares every tensor with the committed one."""
    worst = 0.0
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            make(case, Path(scratch))
            for made in sorted(Path(scratch).iterdir()):
                worst = max(worst, difference(made, FIXTURES / case.name / made.name))
    print(f"{len(cases)} cases agree; largest relative difference {worst:.1e}")


def difference(made: Path, committed: Path) -> float:
    if made.suffix == ".json":
        if json.loads(made.read_text()) != json.loads(committed.read_text()):
            sys.exit(f"{committed} differs from the newly generated {made.name}")
        return 0.0

    new, old = load_file(made), load_file(committed)
    if new.keys() != old.keys():
        sys.exit(f"{committed}: the tensors differ: {sorted(new.keys() ^ old.keys())}")

    worst = 0.0
    for name, value in new.items():
        scale = old[name].double().abs().max().item() or 1.0
        relative = (value.double() - old[name].double()).abs().max().item() / scale
        if relative > 1e-4:
            sys.exit(f"{committed}: {name} differs by {relative:.1e} of its largest value")
        worst = max(worst, relative)
    return worst


# ---------------------------------------------------------------------------------------------------------------------
# Model and data


def new_model(folder: Path):
    config = AutoConfig.from_pretrained(folder)
    config.dtype = torch.float32
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(config)


def load(folder: Path):
    """The model as a user of transformers would load it: proves that the folder is a valid one."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


@torch.no_grad()
def randomise(model, case: Case, random: np.random.Generator):
    """Gives every parameter values far from its initial ones: a missing bias or norm weight must change the result."""
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias")]
    for name, parameter in [*model.named_parameters(), *biases]:
        shape = tuple(parameter.shape)
        value = random.standard_normal(shape)

        if name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
            value = 0.5 * value + (0.0 if model.config.model_type == "gemma3_text" else 1.0)
        elif name.endswith("correction_bias"):
            value = 0.1 * value
        elif name.endswith("bias"):
            value = 0.4 * value
        elif name.endswith(("embed_tokens.weight", "wte.weight", "wpe.weight")):
            value = case.embedding_std * value
        else:
            value = 1.2 * value / np.sqrt(shape[-1])

        if case.idle_expert and name.endswith("mlp.gate.weight"):
            value[3] *= 0.02
        parameter.copy_(torch.from_numpy(value))


def batch(config, case: Case, random: np.random.Generator):
    """input_ids [B, T] and labels [B, T], the latter aligned with positions: labels[b, t] follows input_ids[b, t]."""
    stream = random.integers(0, config.vocab_size, size=(BATCH, case.tokens + 1))
    input_ids, labels = stream[:, :-1].copy(), stream[:, 1:].copy()
    labels[random.random(labels.shape) < 0.2] = IGNORED
    labels[0, -1] = IGNORED
    labels[1, 0] = stream[1, 1]
    return torch.from_numpy(input_ids), torch.from_numpy(labels)


def routing_is_usable(model, input_ids, case: Case) -> bool:
    if not hasattr(model.config, "num_experts_per_tok"):
        return True
    if model.config.model_type == "deepseek_v3":
        return groups_are_clear(model, input_ids)
    top_k, experts = model.config.num_experts_per_tok, model.config.num_experts
    idle_layers = 0

    with torch.no_grad():
        router_logits = model(input_ids=input_ids, output_router_logits=True).router_logits
    for logits in router_logits:
        ranked = logits.softmax(-1).sort(-1, descending=True)
        if top_k < experts:
            margin = ranked.values[:, top_k - 1] - ranked.values[:, top_k]
            if margin.min() < ROUTING_MARGIN:
                return False
        idle_layers += ranked.indices[:, :top_k].unique().numel() < experts

    return (idle_layers > 0) == case.idle_expert


def groups_are_clear(model, input_ids) -> bool:
    """Whether the chosen groups and experts of DeepSeek-V3 are clear of ties, and every expert has a token."""
    config = model.config
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    routed = []
    hooks = [gate.register_forward_hook(lambda gate, _, output: routed.append((gate, output))) for gate in gates]
    with torch.no_grad():
        model(input_ids=input_ids)
    for hook in hooks:
        hook.remove()

    for gate, (logits, _, experts) in routed:
        scores = logits.sigmoid() + gate.e_score_correction_bias
        grouped = scores.view(len(scores), config.n_group, -1)
        of_groups = grouped.topk(2, dim=-1).values.sum(-1).sort(-1, descending=True)
        if config.topk_group < config.n_group:
            margin = of_groups.values[:, config.topk_group - 1] - of_groups.values[:, config.topk_group]
            if margin.min() < ROUTING_MARGIN:
                return False
        mask = torch.ones_like(grouped, dtype=torch.bool)
        mask.scatter_(1, of_groups.indices[:, : config.topk_group, None].expand(-1, -1, grouped.shape[-1]), False)
        ranked = grouped.masked_fill(mask, float("-inf")).flatten(1).sort(-1, descending=True).values
        margin = ranked[:, config.num_experts_per_tok - 1] - ranked[:, config.num_experts_per_tok]
        if margin.min() < ROUTING_MARGIN or experts.unique().numel() < config.n_routed_experts:
            return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Hugging Face tensors


def hub_tensors(tensors: dict, config, case: Case) -> dict:
    """The model's tensors (or their gradients, by the same names) under the names and layouts of the case's files.

    transformers 5 holds gate_up_proj [E, 2F, H] (rows 0..F gate, F..2F up) and down_proj [E, H, F]. The hub has
    experts.E.gate_proj.weight [F, H], experts.E.up_proj.weight [F, H], experts.E.down_proj.weight [H, F]; of Mixtral
    w1, w3 and w2, in block_sparse_moe.
    """
    is_mixtral = config.model_type == "mixtral" and case.experts == "each"
    gate_name, up_name, down_name = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    stored = {}
    for name, tensor in tensors.items():
        if is_mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if case.experts == "each" and name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            for expert, gate_up in enumerate(tensor):
                gate, up = gate_up.chunk(2, dim=0)
                stored[f"{prefix}{expert}.{gate_name}.weight"] = gate.contiguous().clone()
                stored[f"{prefix}{expert}.{up_name}.weight"] = up.contiguous().clone()
        elif case.experts == "each" and name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            for expert, down in enumerate(tensor):
                stored[f"{prefix}{expert}.{down_name}.weight"] = down.contiguous().clone()
        else:
            stored[name] = tensor.detach().contiguous().clone()
    return stored


def as_first_written(tensors: dict, case: Case) -> dict:
    """The tensors of a GPT-2 as the hub's first files have them: without a prefix, with the masks of attention."""
    positions = case.config["n_positions"]
    mask = torch.ones(positions, positions).tril().reshape(1, 1, positions, positions)
    masks = {f"h.{layer}.attn.bias": mask.clone() for layer in range(case.config["n_layer"])}
    return {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()} | masks


def save_weights(tensors: dict, folder: Path, shards: int):
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return

    # Distributed round-robin, so that the parts of a layer and the experts of a block are in different files.
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))

    total_size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


# ---------------------------------------------------------------------------------------------------------------------
# Expectation


def expectation(model, input_ids, labels, case: Case) -> dict:
    """logits [B, T, V], loss [1], grad.NAME for every stored tensor; aux_loss [1] where the case has one."""
    with_aux = bool(getattr(model.config, "output_router_logits", False))
    model.zero_grad(set_to_none=True)
    output = model(input_ids=input_ids, use_cache=False)

    # Computed here, because transformers shifts labels and these are already aligned.
    logits = output.logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    if with_aux:
        loss = loss + model.config.router_aux_loss_coef * output.aux_loss
    loss.backward()

    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        gradients[name] = torch.zeros_like(parameter) if gradient is None else gradient

    expected = {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
    if with_aux:
        expected["aux_loss"] = output.aux_loss.detach().reshape(1)
    for name, gradient in hub_tensors(gradients, model.config, case).items():
        expected[f"grad.{name}"] = gradient
    return {name: value.contiguous() for name, value in expected.items()}


def verify_conditioning(model, input_ids, labels, expected: dict, case: Case):
    """Compares with f64: the error of f32 rounding must be far below the tolerances for other programs."""
    exact = expectation(copy.deepcopy(model).double(), input_ids, labels, case)

    scale = exact["logits"].abs().max()
    off = ((expected["logits"] - exact["logits"]).abs().max() / scale).item()
    if off > LOGITS_AGREE:
        sys.exit(f"{case.name}: f32 logits differ from f64 by {off:.1e}")

    for name, value in exact.items():
        if not name.startswith("grad.") or value.norm() == 0:
            continue
        ours = expected[name].double()
        angle = 1 - (ours * value).sum() / (ours.norm() * value.norm())
        norm = (ours.norm() / value.norm() - 1).abs()
        if angle > ANGLE_AGREES or norm > NORM_AGREES:
            sys.exit(f"{case.name}: {name} is ill-conditioned: 1 - cos {angle:.1e}, norm {norm:.1e}")


def verify_claims(model, case: Case):
    """Checks that transformers read from config.json the features that the case is about."""
    config = model.config
    if config.model_type == "gpt2":
        verify_gpt2(model, case)
        return
    layers = model.model.layers
    attention = layers[0].self_attn
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    facts = {
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": getattr(attention, "head_dim", None),
        "rope_theta": rope["rope_theta"],
        "rope_type": rope["rope_type"],
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "bias": has_bias(attention, "q_proj") and has_bias(attention, "o_proj"),
        "biases": [has_bias(attention, "q_proj"), has_bias(attention, "o_proj")],
        "bias_of_latent": has_bias(attention, "kv_a_proj_with_mqa"),
        "latent_queries": getattr(attention, "q_a_proj", None) is not None,
        "interleaved": getattr(config, "rope_interleave", None),
        "scaling": attention.scaling,
        "windows": [getattr(layer.self_attn, "sliding_window", None) for layer in layers],
        "sliding_window": getattr(config, "sliding_window", None),
        "moe_layers": [i for i, layer in enumerate(layers) if hasattr(layer.mlp, "experts")],
        "norm_topk_prob": getattr(config, "norm_topk_prob", None),
        "top_k": getattr(config, "num_experts_per_tok", None),
        "aux": getattr(config, "output_router_logits", None),
    }
    for name, claim in case.claims.items():
        if facts[name] != claim:
            sys.exit(f"{case.name}: {name} must be {claim} but is {facts[name]}")

    for window in filter(None, facts["windows"]):
        if window >= case.tokens:
            sys.exit(f"{case.name}: a window of {window} hides nothing in {case.tokens} tokens")

    if facts["rope_type"] == "yarn" and not yarn_blends(model):
        sys.exit(f"{case.name}: no frequency is within YaRN's ramp")


def has_bias(block, name: str) -> bool:
    projection = getattr(block, name, None)
    return projection is not None and projection.bias is not None


def verify_gpt2(model, case: Case):
    """As verify_claims, for models without rotary positions."""
    facts = {
        "heads": model.config.n_head,
        "tied": model.lm_head.weight is model.transformer.wte.weight,
        "inner": model.transformer.h[0].mlp.c_fc.weight.shape[1],
        "scaled_by_layer": model.config.scale_attn_by_inverse_layer_idx,
    }
    for name, claim in case.claims.items():
        if facts[name] != claim:
            sys.exit(f"{case.name}: {name} must be {claim} but is {facts[name]}")


def yarn_blends(model) -> bool:
    """Whether some frequency is neither kept nor divided by the whole factor: only those prove the ramp."""
    rope = model.config.rope_parameters
    inverse = model.model.rotary_emb.inv_freq
    plain = rope["rope_theta"] ** -(torch.arange(len(inverse)) / len(inverse))
    kept = inverse / plain
    return bool(((kept > 1.02 / rope["factor"]) & (kept < 0.98)).any())


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
