"""`sprl verify signal`: is there anything to learn from these scored groups of the current policy?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from stateplay_rl.config.rollout import SamplingConfig
from stateplay_rl.config.train_nft import AnchorConfig, OptimizerConfig, TrainNftConfig
from stateplay_rl.config.verify import SignalConfig
from stateplay_rl.distributed import Processes
from stateplay_rl.errors import InputError
from stateplay_rl.nft.signal import (
    GradientCosine,
    expectation,
    gradient_cosine,
    spread,
    units_for_cosine,
)
from stateplay_rl.stages.candidates import policy_sha256
from stateplay_rl.stages.group_gradients import GroupData, group_gram, usable_groups
from stateplay_rl.stages.judge_noise import read_noise
from stateplay_rl.stages.scored_groups import ScoredGroup, ScoredGroups, one_judge, read_scored_groups
from stateplay_rl.stages.signal_lines import Measured, signal_lines
from stateplay_rl.stages.train_nft.objective import Objective
from stateplay_rl.stages.train_nft.samples import JudgedGroup, Sample, build_samples
from stateplay_rl.stages.verify import VerifySummary, default_out, seal_record
from stateplay_rl.stores import layout
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.manifest import OutputDirectory
from stateplay_rl.worlds.base import ParameterGroup, World
from stateplay_rl.worlds.load import load_world
from stateplay_rl.worlds.native.weights import read_safetensors
from stateplay_rl.worlds.world_files import all_files, resolve_world


def run(config: SignalConfig, out: Path | None = None, *, overwrite: bool = False) -> VerifySummary:
    """Measure spread and gradient agreement, hold them against the go/no-go thresholds, write the record.

    Args:
        config: groups, scores, world, policy and mode.
        out: directory to write; None for `verify-<utc>`.
        overwrite: empty `out` first.

    Returns:
        A line per threshold, one on the judge's noise, and what to expect in words. A missed threshold is a
        failed line, not an exception.

    Raises:
        InputError: groups, scores or conditions are missing or do not fit, another policy sampled them, or two
            judges scored them.
        UsageError: a `groups/` directory without scores.
        OutputError: the output directory is not usable.
    """
    found = read_scored_groups(config.groups, config.scores, config.conditions)
    conditions = ConditionStore.open(found.conditions)
    world_config = resolve_world(config.world)
    world = load_world(world_config)
    if config.policy is not None:
        world.apply_policy(read_safetensors([config.policy]), str(config.policy))
    trained = world.set_mode(config.mode)
    chosen = _groups_of_policy(found, world, config)
    judge = one_judge(chosen)
    noise = read_noise(config.probe, judge, [p for p in (config.groups, config.scores) if p is not None])
    with OutputDirectory.open(
        default_out() if out is None else out,
        schema="verify",
        version=layout.SCHEMAS["verify"],
        command="verify signal",
        config=config,
        inputs=_inputs(config, found.conditions),
        resume=False,
        overwrite=overwrite,
        protected=all_files(world_config.files),
    ) as directory:
        data = GroupData(world, conditions, found.source)
        measured = _measure(config, found.sampling, chosen, world, data, trained)
        words = (
            *expectation(measured.scores, measured.cosine, config.wished_cosine),
            *_left_out(found, len(chosen)),
        )
        summary = VerifySummary("signal", directory.path, signal_lines(measured, judge[0], noise), words)
        seal_record(
            directory,
            summary,
            config.groups,
            {**_measures(measured, config), "judge_noise": None if noise is None else noise.points},
            {"group_sha256": {group.record.group_id: group.sha256 for group in chosen}},
        )
    return summary


def _inputs(config: SignalConfig, conditions: Path) -> dict[str, Path]:
    given = {"groups": config.groups, "scores": config.scores, "policy": config.policy, "probe": config.probe}
    return {"conditions": conditions, **{name: path for name, path in given.items() if path is not None}}


def _groups_of_policy(found: ScoredGroups, world: World, config: SignalConfig) -> list[ScoredGroup]:
    """The groups that the loaded policy sampled: at any other point the gradient means something else.

    Raises:
        InputError: the groups are another world's, or none is this policy's.
    """
    strangers = [group for group in found.groups if group.record.world_sha256 != world.sha256]
    if strangers:
        record = strangers[0].record
        raise InputError(
            f"group {record.group_id} is of world {record.world_sha256[:12]}, {config.world} is {world.sha256[:12]}",
            "give the world that rolled the groups out: --world",
        )
    loaded = policy_sha256(world, "live")
    chosen = [group for group in found.groups if group.record.policy_sha256 == loaded]
    if not chosen:
        policies = sorted({group.record.policy_sha256[:12] for group in found.groups})
        mode = found.mode or "MODE"
        raise InputError(
            f"the loaded policy is {loaded[:12]} (mode {config.mode}), the groups were sampled by "
            + ", ".join(policies),
            f"give the policy that sampled them, and its mode: --set policy=FILE --set mode={mode}"
            + (
                " (without a policy: the base weights, which sampled a run's first batch)"
                if mode != config.mode
                else ""
            ),
        )
    return chosen[: config.limit]


def _measure(
    config: SignalConfig,
    sampling: SamplingConfig,
    groups: Sequence[ScoredGroup],
    world: World,
    data: GroupData,
    trained: Sequence[ParameterGroup],
) -> Measured:
    scores = spread(torch.tensor([group.scores for group in groups], dtype=torch.float64))
    training = _training_config(config, sampling)
    units = _samples_by_group(groups, training)
    candidates = sampling.candidates
    if len(units) < 2:
        why_not = f"{len(units)} of {len(groups)} groups are neither tied nor gated, at least 2 are needed"
        return Measured(scores, candidates, len(units), None, why_not)
    objective = Objective(world, training, data.conditions_of, data.latents_of, data.real_of)
    parameters = [parameter for group in trained for parameter in group.parameters]
    gram_NN = group_gram(objective, units, parameters, Processes(0, 1, world.device), draws=config.draws)
    return Measured(scores, candidates, len(units), *_cosine(gram_NN, config))


def _training_config(config: SignalConfig, sampling: SamplingConfig) -> TrainNftConfig:
    """The settings under which `train-nft` would visit these samples, without its anchors."""
    return TrainNftConfig(
        world=config.world,
        seed=config.seed,
        mode=config.mode,
        sampling=sampling,
        loss=config.loss,
        anchors=AnchorConfig(fm_real=0.0, transition_real=0.0, reference_penalty=0.0),
        optimizer=OptimizerConfig(samples_per_call=config.samples_per_call),
    )


def _samples_by_group(groups: Sequence[ScoredGroup], config: TrainNftConfig) -> list[list[Sample]]:
    """The samples of every group that pulls somewhere, all groups taken as one batch."""
    judged = [
        JudgedGroup(
            group_id=group.record.group_id,
            condition_id=group.record.condition_id,
            mechanics_class=group.record.mechanics_class,
            latent_frames=group.record.latent_frames,
            scores=group.scores,
            reason=None,
            line={},
            picture={},
            picture_real=None,
        )
        for group in groups
    ]
    return usable_groups(build_samples(judged, config, batch=0).samples)


def _cosine(gram_NN: Tensor, config: SignalConfig) -> tuple[GradientCosine | None, str]:
    if not bool(gram_NN.diagonal().any()):
        return None, f"every gradient is exactly zero in mode {config.mode}: nothing would be trained"
    return gradient_cosine(gram_NN, splits=config.splits, seed=config.seed), ""


def _left_out(found: ScoredGroups, used: int) -> list[str]:
    words = []
    if len(found.groups) > used:
        words.append(f"{used} of {len(found.groups)} judged groups were used: the loaded policy's, up to `limit`.")
    if found.unjudged:
        words.append(f"{found.unjudged} groups have no full judgement and were left out.")
    return words


def _measures(measured: Measured, config: SignalConfig) -> Mapping[str, object]:
    cosine = measured.cosine
    asked = None
    if cosine is not None:
        asked = units_for_cosine(cosine.mean, cosine.units_per_half, config.wished_cosine)
    return {
        "spread": asdict(measured.scores),
        "cosine": None if cosine is None else asdict(cosine),
        "candidates_per_group": measured.candidates,
        "training_groups": measured.training,
        "conditions_asked_for": asked,
        "wished_cosine": config.wished_cosine,
    }
