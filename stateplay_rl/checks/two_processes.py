"""A few policy updates on the tiny world, the same whatever number of processes shares them.

`python -m torch.distributed.run --standalone --nproc_per_node 2 -m stateplay_rl.checks.two_processes FILE`
and `python -m stateplay_rl.checks.two_processes FILE` must write the same weights. Five samples on two
ranks: the shares are uneven on purpose.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from stateplay_rl.checks import tiny_world
from stateplay_rl.distributed import Processes, start_processes
from stateplay_rl.nft import old_policy
from stateplay_rl.nft.forward import noised
from stateplay_rl.nft.loss import nft_loss
from stateplay_rl.nft.randomness import DrawKey, choice, normal
from stateplay_rl.nft.schedule import sampling_sigmas
from stateplay_rl.worlds.native.modes import trained_groups
from stateplay_rl.worlds.native.transformer import LatentStateTransformer
from stateplay_rl.worlds.native.weights import write_safetensors
from stateplay_rl.worlds.policy_bank import PolicyBank

SAMPLES, SLOTS, STEPS = 5, 3, 3
LEARNING_RATE = 0.05


def train(processes: Processes) -> dict[str, Tensor]:
    """Live and old weights after `STEPS` updates over `SAMPLES` samples, float32 on the CPU."""
    model = tiny_world.tiny_transformer()
    trained = {
        name: parameter
        for group in trained_groups(model, "transition")
        for name, parameter in zip(group.names, group.parameters, strict=True)
    }
    for parameter in trained.values():
        parameter.requires_grad_(True)
    bank = PolicyBank(trained, [p for name, p in model.named_parameters() if name not in trained])
    conditions = tiny_world.tiny_conditions(SAMPLES, SLOTS)
    for step in range(STEPS):
        gradients = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in trained.items()}
        for _, sample in processes.mine(range(SAMPLES)):
            for name, value in _gradient(model, bank, trained, conditions, sample, step).items():
                gradients[name] += value
        for name, parameter in trained.items():
            # A sum over ranks, divided by the global count: the mean of local means would weigh ranks.
            mean = processes.sum_(gradients[name]) / SAMPLES
            with torch.no_grad():
                parameter.sub_((LEARNING_RATE * mean).float())
        bank.update_old(old_policy.weight_on_old(step + 1))
    policies = {"live": bank.state("live"), "old": bank.state("old")}
    return {f"{policy}.{name}": value for policy, state in policies.items() for name, value in state.items()}


def _gradient(
    model: LatentStateTransformer,
    bank: PolicyBank,
    trained: dict[str, torch.nn.Parameter],
    conditions: tiny_world.TinyConditions,
    sample: int,
    step: int,
) -> dict[str, Tensor]:
    """Gradient of one sample's loss, float64 by name; every draw is keyed by step and sample."""
    own = conditions.rows(slice(sample, sample + 1))
    shape = tiny_world.latent_shape(1, SLOTS)
    key = DrawKey(run_seed=0, purpose="eps", batch=step, candidate=sample)
    x0 = normal(replace(key, purpose="tiny_x0", batch=0), shape)
    sigma_B = choice(replace(key, purpose="sigma"), sampling_sigmas(4)).reshape(1)
    noisy = noised(x0, normal(key, shape), sigma_B, own.first_latent_BC1HW)
    with torch.no_grad(), bank.use("old"):
        v_old = tiny_world.velocity(model, noisy.x_sigma, sigma_B, own)
    with bank.live_window():
        v_live = tiny_world.velocity(model, noisy.x_sigma, sigma_B, own)
        r_B = torch.tensor([sample / (SAMPLES - 1)])
        loss = nft_loss(
            noisy, v_live, v_old, r_B, beta_nft=1.0, advantage_clip=5.0, has_condition_slot=True
        ).loss_per_sample.sum()
        values = torch.autograd.grad(loss, list(trained.values()))
    return {name: value.double() for name, value in zip(trained, values, strict=True)}


def main(target: Path) -> None:
    """Train on this rank; rank 0 writes the weights."""
    torch.set_num_threads(1)
    processes = start_processes()
    weights = train(processes)
    if processes.is_main:
        write_safetensors(target, weights, {"processes": str(processes.count)})
    processes.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
