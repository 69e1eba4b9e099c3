"""The checkout's own classes, built in this process and filled from the user's weight files.

Parameters are made on the meta device and filled one by one from the files; buffers and plain tensors are what
the checkout's constructors compute, unless a file holds them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import nn

from stateplay_rl.config.world import WorldConfig
from stateplay_rl.errors import InputError
from stateplay_rl.worlds.native.architecture import architecture_of
from stateplay_rl.worlds.native.fill import fill_exactly, require_filled, stored_under_our_names
from stateplay_rl.worlds.native.presets import TransformerSizes
from stateplay_rl.worlds.native.weight_files import StoredTensor
from stateplay_rl.worlds.stateplay.checkout import CheckoutFacts, facts_of, import_module, package_root
from stateplay_rl.worlds.stateplay.symbols import SymbolMap, literal, map_symbols

TEXT_TOKENS = 512


@dataclass(frozen=True)
class Checkout:
    """A checkout whose parts were found; nothing of it is imported before `part` is called."""

    root: Path
    facts: CheckoutFacts
    symbols: SymbolMap

    def part(self, name: str) -> Any:
        """The class or function behind a part.

        Raises:
            InputError: the checkout has none, or its import fails.
        """
        if name not in self.symbols.found:
            raise InputError(
                f"checkout {self.root} has no {name}",
                f"name it: checkout_options: {{symbols: {{{name}: module:name}}}}",
            )
        definition = self.symbols.found[name]
        return getattr(import_module(self.root, definition.module, self.facts.code_sha256), definition.name)

    @property
    def record(self) -> dict[str, Any]:
        """For manifests."""
        return self.facts.record(self.symbols)


@dataclass(frozen=True)
class CheckoutNetworks:
    """Everything that the adapter calls; frozen, in eval mode, on one device."""

    dit: nn.Module
    model_fn: Callable[..., Any]
    vae: Any
    text_encoder: nn.Module
    text_tokenizer: Callable[..., Any]
    transition_tokenizer: nn.Module | None


def open_checkout(config: WorldConfig) -> Checkout:
    """Find the parts of the checkout that a resolved world names.

    Raises:
        InputError: no package, a missing part, code that does not parse.
    """
    assert config.checkout is not None, "a config of backend stateplay names a checkout"
    root = package_root(config.checkout)
    return Checkout(root, facts_of(config.checkout), map_symbols(root, config.checkout_options.symbols))


def build_model(checkout: Checkout, config: WorldConfig) -> nn.Module:
    """The checkout's `StatePlayModel` with parameters on the meta device."""
    wan = literal(checkout.root, "WAN_MODEL_KWARGS") or _wan_kwargs(architecture_of(config).sizes.transformer)
    buttons = architecture_of(config).sizes.transformer.buttons
    kwargs = {"num_buttons": buttons, **wan}
    return _build(checkout.part("model"), kwargs, config.checkout_options.model_kwargs)


def bare_modules(checkout: Checkout, config: WorldConfig) -> dict[str, nn.Module]:
    """All networks by part, parameters on the meta device; without the tokenizer where the checkout has none.

    Raises:
        InputError: a part is missing or cannot be built.
    """
    options = config.checkout_options
    modules = {
        "text_encoder": _build(checkout.part("text_encoder"), {}, options.text_encoder_kwargs),
        "model": build_model(checkout, config),
        "vae": _build(checkout.part("vae"), {}, options.vae_kwargs),
    }
    if "transition_tokenizer" in checkout.symbols.found:
        factory = checkout.part("transition_tokenizer")
        modules["transition_tokenizer"] = _build(factory, {}, options.transition_tokenizer_kwargs)
    return modules


def load_networks(
    checkout: Checkout, config: WorldConfig, dtype: torch.dtype, device: torch.device
) -> CheckoutNetworks:
    """Build and fill everything.

    Raises:
        InputError: keys that do not fit (named), or a class that cannot be built.
        CorruptionError: a file is not readable.
    """
    files, options = config.files, config.checkout_options
    if config.key_map:
        raise InputError("key_map has no meaning for backend stateplay", "the checkout knows its own key names")
    built = bare_modules(checkout, config)
    _fill(built["text_encoder"], [files.text_encoder], dtype, device)
    _fill(built["model"], files.checkpoint, dtype, device, base=files.base)
    _fill(built["vae"], [files.vae], dtype, device)
    tokenizer = built.get("transition_tokenizer")
    if tokenizer is not None:
        # Codes are rounded values: they must not depend on the compute dtype.
        _fill(tokenizer, [files.transition_tokenizer], torch.float32, device)
    text_tokenizer = _call(
        checkout.part("text_tokenizer"),
        {"name": str(files.text_tokenizer), "seq_len": TEXT_TOKENS, "clean": "whitespace"},
        options.text_tokenizer_kwargs,
    )
    return CheckoutNetworks(
        built["model"], checkout.part("model_fn"), built["vae"], built["text_encoder"], text_tokenizer, tokenizer
    )


def scheduler_sigmas(checkout: Checkout, config: WorldConfig, steps: int, shift: float) -> torch.Tensor | None:
    """The checkout's own sampling grid; None when it has no scheduler that is known."""
    if "scheduler" not in checkout.symbols.found:
        return None
    scheduler = _call(checkout.part("scheduler"), {"template": "Wan"}, config.checkout_options.scheduler_kwargs)
    scheduler.set_timesteps(steps, shift=shift)
    sigmas: torch.Tensor = scheduler.sigmas
    return sigmas


def accepted(
    function: Callable[..., Any], offered: Mapping[str, Any], required: Sequence[str] = (), positional: int = 0
) -> dict[str, Any]:
    """Those of the offered arguments that a function takes.

    Args:
        function: of the checkout; a bound method does not count its object.
        offered: argument -> value.
        required: of the offered ones, those that it must take.
        positional: how many leading arguments are given by position.

    Raises:
        InputError: it does not take a required one, or needs one that is not offered.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-in callables have no signature
        return dict(offered)
    by_name = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)][positional:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = set(offered) if open_ended else {p.name for p in by_name} & set(offered)
    lacking = [name for name in required if name not in names]
    needed = [p.name for p in by_name if p.default is p.empty and p.name not in names]
    if lacking or needed:
        text = f"takes no {', '.join(lacking)}" if lacking else f"needs {', '.join(needed)}, which is not known"
        raise InputError(
            f"{getattr(function, '__qualname__', function)} {text}",
            "give further arguments in the world file: checkout_options, *_kwargs",
        )
    return {name: value for name, value in offered.items() if name in names}


def _call(factory: Callable[..., Any], known: Mapping[str, Any], stated: Mapping[str, Any]) -> Any:
    """An object of a class, with what it takes of the known arguments and all of the stated ones."""
    arguments = accepted(factory, {**known, **stated}, tuple(stated))
    try:
        return factory(**arguments)
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        name = getattr(factory, "__qualname__", str(factory))
        shown = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise InputError(
            f"{name}({shown}) failed: {type(error).__name__}: {error}".splitlines()[0],
            "correct its arguments in the world file: checkout_options",
        ) from error


def _build(factory: Callable[..., Any], known: Mapping[str, Any], stated: Mapping[str, Any]) -> nn.Module:
    # Parameters only: tables that a constructor computes (rotary tables, latent statistics) keep their values.
    with init_empty_weights(include_buffers=False):
        module = _call(factory, known, stated)
    if not isinstance(module, nn.Module):
        raise InputError(f"{factory} builds a {type(module).__name__}, not a torch module", "correct the symbol")
    return module


def _fill(
    module: nn.Module,
    paths: Sequence[Path],
    dtype: torch.dtype,
    device: torch.device,
    base: Sequence[Path] = (),
) -> None:
    source = ", ".join(str(path) for path in (*paths, *base))
    stored: dict[str, StoredTensor] = {}
    for part in (base, paths):  # the checkpoint's own tensors win over the base's
        if part:
            stored |= stored_under_our_names(part, own_name(module))
    own = module.state_dict()
    fill_exactly(
        module,
        stored,
        source,
        dtype_of=lambda _, kept: dtype if kept.is_floating_point else kept,
        device=device,
        optional=buffers_of(module),
    )
    require_filled(module, source)
    for name, buffer in module.named_buffers():
        if name not in stored and name in own:
            buffer.data = buffer.data.to(device=device, dtype=dtype if buffer.is_floating_point() else buffer.dtype)
    module.to(device).eval().requires_grad_(False)


def own_name(module: nn.Module) -> Callable[[str], str | None]:
    """Name in a file -> the module's own: the same, or below `model.` (Wan's VAE wraps its network)."""
    own = module.state_dict().keys()

    def rename(name: str) -> str | None:
        return next((candidate for candidate in (name, f"model.{name}") if candidate in own), None)

    return rename


def buffers_of(module: nn.Module) -> tuple[str, ...]:
    """Names of persistent buffers: the trainer's logger leaves them out, their constructor computes them."""
    own = module.state_dict().keys()
    return tuple(name for name, _ in module.named_buffers() if name in own)


def _wan_kwargs(sizes: TransformerSizes) -> dict[str, Any]:
    """Arguments of the public Wan model class for these sizes, as the ancestor's training entry point gives them."""
    return {
        "has_image_input": False,
        "patch_size": list(sizes.patch),
        "in_dim": sizes.in_channels,
        "dim": sizes.dim,
        "ffn_dim": sizes.ffn_dim,
        "freq_dim": sizes.freq_dim,
        "text_dim": sizes.text_dim,
        "out_dim": sizes.in_channels,
        "num_heads": sizes.heads,
        "num_layers": sizes.layers,
        "eps": sizes.eps,
        "seperated_timestep": True,
        "require_clip_embedding": False,
        "require_vae_embedding": False,
        "fuse_vae_embedding_in_latents": True,
    }
