"""The base model of the student: which checkpoints are accepted, and how one is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateplay_rl.errors import CorruptionError, InputError, MissingExtraError, UsageError
from stateplay_rl.reward_model.chat import ChatFormat
from stateplay_rl.reward_model.delta_rule import DeltaRule, RuleName
from stateplay_rl.reward_model.fused import FusedName, resolve_fused
from stateplay_rl.reward_model.learning import Precision
from stateplay_rl.reward_model.pictures import PictureReader
from stateplay_rl.stores.atomic import sha256_file, sha256_json
from stateplay_rl.stores.foreign import parse_json

ARENA_STUDENT = Path(__file__).resolve().parent.parent / "arena" / "student"
"""The packaged small student; `--model arena`."""
ARENA = "arena"
MODEL_TYPE = "qwen3_5"
_TEXT_ONLY = frozenset({"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"})
_GET = "get the checkpoint first, for example: hf download Qwen/Qwen3.5-9B --local-dir DIR, then --model DIR"


@dataclass(frozen=True)
class BaseModel:
    """A loaded base without an adapter.

    Args:
        model: `Qwen3_5ForConditionalGeneration`, frozen, in evaluation mode.
        chat: how a payload becomes tokens.
        pictures: how JPEG bytes become patches.
        sha256: hash over every file that decides an answer: weights, configuration, tokenizer, picture settings.
        rule: the delta rule that its layers use.
        fused: whether norms, gates and convolutions run as Triton kernels.
    """

    folder: Path
    model: Any
    chat: ChatFormat
    pictures: PictureReader
    sha256: str
    rule: DeltaRule
    fused: bool

    @property
    def layer_types(self) -> Sequence[str]:
        """`linear_attention` or `full_attention` of every decoder layer."""
        return list(self.model.config.text_config.layer_types)

    @property
    def device(self) -> torch.device:
        """Where the language model lies."""
        return torch.device(next(self.model.parameters()).device)


def resolve_model(name: str | Path) -> Path:
    """The folder behind `arena` or a path.

    Raises:
        InputError: no such folder. Nothing is downloaded: a run must not depend on what a hub serves today.
    """
    folder = ARENA_STUDENT if str(name) == ARENA else Path(name)
    if not (folder / "config.json").is_file():
        hint = "it is part of the package: reinstall stateplay-rl" if folder == ARENA_STUDENT else _GET
        raise InputError(f"{folder} holds no model (config.json is missing)", hint)
    return folder


def refuse_other_families(folder: Path) -> None:
    """Raise unless the folder holds a Qwen3.5 with its vision tower.

    Raises:
        InputError: another family, or a text-only model; the reason is in the message.
        CorruptionError: config.json is damaged.
    """
    file = folder / "config.json"
    try:
        config = parse_json(file.read_bytes(), finite=False)
        kind = str(config["model_type"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{file} is no model configuration ({error!r})", _GET) from error
    if kind in _TEXT_ONLY or (kind == MODEL_TYPE and not config.get("vision_config")):
        raise InputError(
            f"{folder} is a text-only model ({kind}): the student must see the judge's pictures",
            "use the checkpoint with the vision tower (model_type qwen3_5)",
        )
    if kind != MODEL_TYPE:
        raise InputError(
            f"{folder} is of another family ({kind}): LoRA targets, DeltaNet layers and chat format are those of "
            f"{MODEL_TYPE}",
            _GET,
        )


def model_sha256(folder: Path) -> str:
    """Hash over the files of a model folder that decide an answer."""
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".json", ".safetensors", ".jinja", ".txt"))
    return sha256_json({name: sha256_file(folder / name) for name in names})


def load_base(
    name: str | Path, *, device: torch.device, precision: Precision, rule: RuleName, fused: FusedName = "auto"
) -> BaseModel:
    """Load a base model from a local folder.

    Args:
        name: `arena` or a folder in the layout of transformers.
        precision: of frozen weights and activations; `nf4` is the last resort for small cards.
        rule: which delta rule the DeltaNet layers use.
        fused: what norms, gates and convolutions run as.

    Raises:
        InputError, CorruptionError: missing, damaged, or of another family.
        MissingExtraError: transformers is too old for Qwen3.5, or `nf4` without bitsandbytes, kernels without a GPU.
    """
    folder = resolve_model(name)
    refuse_other_families(folder)
    installed = DeltaRule(rule, device).install() if _has_qwen() else _no_qwen()
    model = _load_weights(folder, device, precision)
    model.requires_grad_(False)
    model.eval()
    chat = ChatFormat.load(folder, image_token_id=int(model.config.image_token_id))
    pictures = PictureReader.load(folder, model.config.vision_config)
    return BaseModel(folder, model, chat, pictures, model_sha256(folder), installed, resolve_fused(fused, device))


def _has_qwen() -> bool:
    try:
        import transformers.models.qwen3_5.modeling_qwen3_5  # noqa: F401
    except ImportError:
        return False
    return True


def _no_qwen() -> DeltaRule:
    raise MissingExtraError("this transformers has no Qwen3.5", "install the extra: pip install 'stateplay-rl[reward]'")


def _load_weights(folder: Path, device: torch.device, precision: Precision) -> Any:
    from safetensors import SafetensorError
    from transformers import Qwen3_5ForConditionalGeneration
    from transformers.utils import logging

    # Its bars and notices on missing kernels would stand between our own lines.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    options: dict[str, Any] = {"dtype": torch.float32 if precision == "float32" else torch.bfloat16}
    if precision == "nf4":
        options["quantization_config"] = _nf4(device)
        options["device_map"] = {"": device}
    try:
        model, report = Qwen3_5ForConditionalGeneration.from_pretrained(
            str(folder),
            attn_implementation="sdpa",
            output_loading_info=True,
            local_files_only=True,
            use_safetensors=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"{folder} cannot be loaded as Qwen3.5: {error!s:.300}", _GET) from error
    missing = sorted(report["missing_keys"])
    if missing or report["mismatched_keys"]:
        raise InputError(
            f"{folder} lacks {len(missing)} tensors ({missing[:2]}) and has {len(report['mismatched_keys'])} of "
            "another shape",
            _GET,
        )
    return model if precision == "nf4" else model.to(device)


def _nf4(device: torch.device) -> Any:
    """4-bit settings: only the large Linears of the language model; DeltaNet's gates stay as they are."""
    import importlib.util

    if device.type != "cuda":
        raise UsageError("precision nf4 needs a GPU", "use --set compute.precision=bfloat16")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError("precision nf4 needs bitsandbytes", "pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["visual", "lm_head", "in_proj_a", "in_proj_b", "conv1d"],
    )
