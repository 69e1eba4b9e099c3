"""LoRA on the language model of Qwen3.5: which modules, how many of each layer type, and the adapter's files."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stateplay_rl.errors import CheckError, CorruptionError, InputError
from stateplay_rl.nft.randomness import DrawKey, generator
from stateplay_rl.stores.atomic import pretty_json, write_text

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
DELTANET = ("in_proj_qkv", "in_proj_z", "out_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
PARENTS = {"self_attn": ATTENTION, "linear_attn": DELTANET, "mlp": MLP}
"""Module below a decoder layer -> the Linears in it that are adapted."""
SUFFIXES = (*ATTENTION, *DELTANET, *MLP)

_LAYER = re.compile(r"model\.language_model\.layers\.(\d+)\.(self_attn|linear_attn|mlp)\.(\w+)")
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class LoraTargets:
    """Full names of the adapted Linears, and how many there are of each kind.

    Args:
        names: in the model's order.
        counts: `full_attention.q_proj` -> number of modules, and so on for `linear_attention` and `mlp`.
    """

    names: tuple[str, ...]
    counts: dict[str, int]


def find_targets(model: nn.Module, layer_types: Sequence[str]) -> LoraTargets:
    """Match the installed version's real module names.

    Args:
        model: the conditional-generation model, without an adapter.
        layer_types: `full_attention` or `linear_attention` for every decoder layer.

    Raises:
        CheckError: a kind of module is missing in any layer that should have it, or is no Linear.
    """
    names: list[str] = []
    counts: Counter[str] = Counter()
    for name, module in model.named_modules():
        match = _LAYER.fullmatch(name)
        if match is None or match.group(3) not in PARENTS[match.group(2)]:
            continue
        if not isinstance(module, nn.Linear):
            raise CheckError(f"{name} is a {type(module).__name__}, not a Linear", "this transformers is not supported")
        kind = "mlp" if match.group(2) == "mlp" else layer_types[int(match.group(1))]
        names.append(name)
        counts[f"{kind}.{match.group(3)}"] += 1
    expected = expected_counts(layer_types)
    if dict(counts) != expected:
        wrong = [f"{k}: {counts.get(k, 0)}, not {n}" for k, n in expected.items() if counts.get(k, 0) != n]
        wrong += [f"{k}: {n}, not 0" for k, n in counts.items() if k not in expected]
        raise CheckError(
            f"LoRA targets do not match the model's layers: {'; '.join(wrong)}",
            "the installed transformers names its modules differently: use a version from constraints.txt",
        )
    return LoraTargets(tuple(names), expected)


def expected_counts(layer_types: Sequence[str]) -> dict[str, int]:
    """How many modules of each kind a model with these layers has.

    Raises:
        CheckError: a layer type that is none of Qwen3.5's.
    """
    kinds = Counter(layer_types)
    if set(kinds) - {"full_attention", "linear_attention"} or not kinds:
        raise CheckError(f"unknown layer types {sorted(kinds)}", "only Qwen3.5's two layer types are supported")
    expected = {f"full_attention.{n}": kinds["full_attention"] for n in ATTENTION if kinds["full_attention"]}
    expected |= {f"linear_attention.{n}": kinds["linear_attention"] for n in DELTANET if kinds["linear_attention"]}
    return expected | {f"mlp.{name}": len(layer_types) for name in MLP}


def attach(model: Any, targets: LoraTargets, *, rank: int, alpha: int, dropout: float, seed: int) -> Any:
    """Wrap the model with a fresh adapter (float32, B = 0, A from the seed) and freeze everything else.

    Returns:
        The PEFT model; its base is `model` itself.

    Raises:
        CheckError: PEFT adapted other modules than `targets`, or something else is trainable.
    """
    from peft import LoraConfig, get_peft_model

    # Suffixes, as servers expect them; what PEFT made of them is compared with the exact names below.
    suffixes = sorted({name.rpartition(".")[2] for name in targets.names})
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=suffixes,
        exclude_modules=r".*\.visual\..*",
        bias="none",
        task_type="CAUSAL_LM",
    )
    with _quiet():
        wrapped: Any = get_peft_model(model, config, autocast_adapter_dtype=True)
    _require_targets(wrapped, targets)
    _initialise(wrapped, seed)
    return wrapped


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notice that PEFT asks transformers by a name that is to be dropped."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        yield


def _require_targets(wrapped: Any, targets: LoraTargets) -> None:
    prefix = "base_model.model."
    adapted = {
        n.removeprefix(prefix).partition(".lora_A.")[0] for n, _ in wrapped.named_parameters() if ".lora_A." in n
    }
    if adapted != set(targets.names):
        missing, extra = sorted(set(targets.names) - adapted)[:3], sorted(adapted - set(targets.names))[:3]
        raise CheckError(f"PEFT adapted other modules: missing {missing}, extra {extra}", "use another PEFT version")
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad != (".lora_" in name):
            raise CheckError(f"{name}: requires_grad is {parameter.requires_grad}", "use another PEFT version")


@torch.no_grad()
def _initialise(wrapped: Any, seed: int) -> None:
    """A uniform in +-1/sqrt(inputs) (Kaiming with a = sqrt(5), as PEFT), B zero; drawn per module on the CPU."""
    for name, parameter in trained_parameters(wrapped).items():
        if ".lora_B." in name:
            parameter.zero_()
            continue
        draw = torch.rand(parameter.shape, generator=generator(DrawKey(seed, f"lora {name}")))
        parameter.copy_((2.0 * draw - 1.0) / parameter.shape[1] ** 0.5)


def find_targets_of(wrapped: Any) -> list[str]:
    """Names of the adapted modules of a wrapped model."""
    return [name.partition(".lora_A.")[0] for name, _ in wrapped.named_parameters() if ".lora_A." in name]


def trained_parameters(wrapped: Any) -> dict[str, nn.Parameter]:
    """The adapter's parameters by name, in the model's order."""
    return {name: parameter for name, parameter in wrapped.named_parameters() if parameter.requires_grad}


def adapter_state(wrapped: Any) -> dict[str, Tensor]:
    """The adapter as float32 tensors on the CPU, by parameter name."""
    return {name: p.detach().float().cpu().clone() for name, p in trained_parameters(wrapped).items()}


@torch.no_grad()
def load_state(wrapped: Any, state: Mapping[str, Tensor]) -> None:
    """Copy an `adapter_state` back.

    Raises:
        CorruptionError: other names or shapes.
    """
    parameters = trained_parameters(wrapped)
    if {n: p.shape for n, p in parameters.items()} != {n: t.shape for n, t in state.items()}:
        raise CorruptionError("the adapter's tensors do not fit the model", "start over with --overwrite")
    for name, parameter in parameters.items():
        parameter.copy_(state[name])


def save_adapter(wrapped: Any, folder: Path, base_name: str) -> None:
    """Write the adapter as PEFT does, so that any OpenAI-compatible server with Qwen3.5 LoRA can load it."""
    wrapped.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / ADAPTER_CONFIG
    config = json.loads(file.read_bytes())
    # PEFT writes the base's path on this machine; servers name the base themselves.
    config["base_model_name_or_path"] = base_name
    # PEFT writes sets in their order of the day: the same adapter must have the same bytes.
    config["target_modules"] = sorted(config["target_modules"])
    write_text(file, pretty_json(config))
    # safetensors makes its files readable for their owner only; a server may run as somebody else.
    (folder / ADAPTER_WEIGHTS).chmod(file.stat().st_mode)


def load_adapter(model: Any, folder: Path) -> Any:
    """The model with a saved adapter, frozen, in the precision in which it was saved.

    Raises:
        InputError: no adapter, or one that does not fit this model.
    """
    from peft import PeftModel

    if not (folder / ADAPTER_WEIGHTS).is_file() or not (folder / ADAPTER_CONFIG).is_file():
        raise InputError(f"{folder} holds no PEFT adapter", "give the reward_model/ directory of `sprl train-rm`")
    try:
        with _quiet():
            wrapped: Any = PeftModel.from_pretrained(
                model, str(folder), is_trainable=False, autocast_adapter_dtype=True
            )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the adapter in {folder} does not fit this base model: {error!s:.300}", "give its base with --model"
        ) from error
    _require_all(wrapped, folder)
    return wrapped.eval()


def _require_all(wrapped: Any, folder: Path) -> None:
    """PEFT only warns of tensors that an adapter lacks: they would stay random."""
    from safetensors import SafetensorError, safe_open

    prefix = "base_model.model."
    model = {name.replace(".default.", "."): p for name, p in wrapped.named_parameters() if ".lora_" in name}
    try:
        with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
            names = set(file.keys())
            same = names == model.keys() and all(torch.equal(file.get_tensor(n), model[n].cpu()) for n in names)
    except (OSError, SafetensorError) as error:
        raise CorruptionError(f"{folder / ADAPTER_WEIGHTS} cannot be read: {error}", "restore the adapter") from error
    if not same:
        lacking = sorted(n.removeprefix(prefix) for n in model.keys() - names)
        raise InputError(
            f"the adapter in {folder} does not fit this base model: it lacks {len(lacking)} of {len(model)} tensors "
            f"{lacking[:2]}",
            "give the base that it was trained on",
        )
