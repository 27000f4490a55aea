"""Writes the fixtures of this folder: what torch computes from seeded parameters and gradients.

    python make_fixtures.py

The committed files were made with torch 2.15.0, numpy 2.4.6 and safetensors 0.8.0. The metadata of
optimizers.safetensors records seed, shapes and versions.

optimizers.safetensors   start/PARAMETER, gradient/STEP/PARAMETER and, for each case,
                         CASE/param/PARAMETER and CASE/STATE/PARAMETER after all steps
schedules.json           for each schedule, the factors of steps 0 to the last
"""

import json
import pathlib

import numpy as np
import safetensors
import torch
from safetensors.numpy import save_file
from torch.optim import _muon, lr_scheduler, swa_utils

FOLDER = pathlib.Path(__file__).parent
SEED, STEPS, SCALE = 20, 20, 0.5
SHAPES = {"wide": [5, 7], "tall": [9, 4], "experts": [3, 4, 6], "bias": [11]}
MATRICES = [name for name, shape in SHAPES.items() if len(shape) > 1]
EMA_DECAY = 0.9


def learning_rate(step):
    """Differs from step to step; f32, as the device has it."""
    return float(np.float32(0.01 * (1.0 - step / 40.0)))


rng = np.random.default_rng(SEED)
start = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
gradients = [
    {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    for _ in range(STEPS)
]
tensors = {f"start/{name}": value for name, value in start.items()}
for at, of_step in enumerate(gradients):
    tensors |= {f"gradient/{at + 1}/{name}": value for name, value in of_step.items()}


def run(case, make, keep, names=SHAPES, matrices=False, average=False):
    """Trains `names` with the optimizer that `make` returns and stores the states `keep`.

    `matrices` gives each leading index of a 3-D parameter as a parameter of its own.
    """
    params = {name: torch.tensor(start[name]) for name in names}
    views = {
        name: list(param) if matrices and param.ndim == 3 else [param]
        for name, param in params.items()
    }
    optimizer = make(views)
    mean = swa_utils.get_ema_multi_avg_fn(EMA_DECAY)
    averages = {name: param.clone() for name, param in params.items()}
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        for name in names:
            gradient = SCALE * torch.tensor(gradients[step - 1][name])
            split = len(views[name]) > 1
            for at, view in enumerate(views[name]):
                view.grad = gradient[at] if split else gradient.clone()
        optimizer.step()
        if average:
            mean(list(averages.values()), list(params.values()), step)

    for name in names:
        tensors[f"{case}/param/{name}"] = params[name].numpy().copy()
        for state in keep:
            of_views = [optimizer.state[view][state] for view in views[name]]
            whole = torch.stack(of_views) if len(of_views) > 1 else of_views[0]
            tensors[f"{case}/{state}/{name}"] = whole.numpy().copy()
        if average:
            tensors[f"{case}/ema/{name}"] = averages[name].numpy().copy()


def groups(views, weight_decay):
    """Parameters with fewer than two dims do not decay."""
    flat = lambda keep: [view for name, list_ in views.items() if keep(name) for view in list_]
    return [
        {"params": flat(lambda name: name in MATRICES), "weight_decay": weight_decay},
        {"params": flat(lambda name: name not in MATRICES), "weight_decay": 0.0},
    ]


def adamw(views):
    return torch.optim.AdamW(groups(views, 0.1), betas=(0.9, 0.95), eps=1e-8, foreach=False)


def sgd(**options):
    return lambda views: torch.optim.SGD(groups(views, 0.02), foreach=False, **options)


def muon(adjust):
    def make(views):
        params = [view for list_ in views.values() for view in list_]
        return torch.optim.Muon(params, weight_decay=0.1, momentum=0.95, adjust_lr_fn=adjust)

    return make


def newton_schulz_f32(gradient, coefficients, steps, eps):
    """torch.optim.Muon's iteration without the cast to bf16, in f64 and rounded to f32."""
    a, b, c = coefficients
    x = gradient.double()
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).to(gradient.dtype)


def lion(beta1=0.9, beta2=0.99, decay=0.1):
    """Algorithm 2 of Chen et al. 2023, in f64."""
    for name in SHAPES:
        param, exp_avg = start[name].astype(np.float64), np.zeros(SHAPES[name])
        wd = decay if name in MATRICES else 0.0
        for step in range(1, STEPS + 1):
            gradient = SCALE * gradients[step - 1][name].astype(np.float64)
            update = np.sign(beta1 * exp_avg + (1 - beta1) * gradient)
            exp_avg = beta2 * exp_avg + (1 - beta2) * gradient
            param = param - learning_rate(step) * (update + wd * param)
        tensors[f"lion/param/{name}"] = param.astype(np.float32)
        tensors[f"lion/exp_avg/{name}"] = exp_avg.astype(np.float32)


run("adamw", adamw, ["exp_avg", "exp_avg_sq"], average=True)
run("sgd_plain", sgd(momentum=0.0), [])
run("sgd_dampened", sgd(momentum=0.9, dampening=0.2), ["momentum_buffer"])
run("sgd_nesterov", sgd(momentum=0.9, nesterov=True), ["momentum_buffer"])
lion()
run("muon_bf16", muon("original"), ["momentum_buffer"], MATRICES, matrices=True)
_muon._zeropower_via_newtonschulz = newton_schulz_f32
for adjust in ["original", "match_rms_adamw"]:
    run(f"muon_{adjust}", muon(adjust), ["momentum_buffer"], MATRICES, matrices=True)

about = {
    "seed": SEED,
    "shapes": SHAPES,
    "torch": torch.__version__.split("+")[0],
    "numpy": np.__version__,
    "safetensors": safetensors.__version__,
}
tensors = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
save_file(tensors, FOLDER / "optimizers.safetensors", {"about": json.dumps(about)})


def factors(make, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    values = []
    for _ in range(steps + 1):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def warm_up(optimizer):
    return lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)


def warm_up_then(make):
    def both(optimizer):
        parts = [warm_up(optimizer), make(optimizer)]
        return lr_scheduler.SequentialLR(optimizer, parts, milestones=[10])

    return both


schedules = {
    "linear": factors(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, 40), 50),
    "cosine": factors(lambda o: lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.1), 40),
    "polynomial": factors(lambda o: lr_scheduler.PolynomialLR(o, 40, power=2.5), 50),
    "exponential": factors(lambda o: lr_scheduler.ExponentialLR(o, 0.93), 40),
    "warm_up_cosine": factors(
        warm_up_then(lambda o: lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.1)), 40
    ),
    "warm_up_linear": factors(
        warm_up_then(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 30)), 40
    ),
}
text = json.dumps({name: values for name, values in schedules.items()}, indent=1)
(FOLDER / "schedules.json").write_text(text + "\n")
