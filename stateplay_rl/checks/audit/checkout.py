"""What a checkout's own model consists of: the expected tensors of a world of backend `stateplay`.

The classes are the user's, so they are imported and built (parameters on the meta device, no weights read).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateplay_rl.checks.audit.coverage import Naming
from stateplay_rl.checks.audit.expected import TEXT_ENCODER, TOKENIZER, TRANSFORMER, VAE, ExpectedTensor
from stateplay_rl.config.world import WorldConfig

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CheckoutModel:
    """A checkout's model as an audit needs it.

    Args:
        expected: every parameter and persistent buffer.
        naming: how a file's bare names become the model's own.
        facts: commit, dirty state, symbols and differences.
    """

    expected: tuple[ExpectedTensor, ...]
    naming: Naming
    facts: Mapping[str, Any]


def checkout_model(config: WorldConfig) -> CheckoutModel:
    """Build the checkout's classes and list their tensors.

    Raises:
        InputError: a part is missing or cannot be built.
    """
    from stateplay_rl.worlds.stateplay.networks import bare_modules, open_checkout, own_name

    checkout = open_checkout(config)
    built = bare_modules(checkout, config)
    components: dict[str, nn.Module] = {
        component: built[part]
        for component, part in (
            (TRANSFORMER, "model"),
            (TOKENIZER, "transition_tokenizer"),
            (VAE, "vae"),
            (TEXT_ENCODER, "text_encoder"),
        )
        if part in built
    }
    expected: list[ExpectedTensor] = []
    renames = {}
    for component, module in components.items():
        own = module.state_dict().keys()
        expected += [ExpectedTensor(component, n, tuple(p.shape)) for n, p in module.named_parameters()]
        expected += [
            ExpectedTensor(component, n, tuple(b.shape), buffer=True) for n, b in module.named_buffers() if n in own
        ]
        renames[component] = own_name(module)

    def naming(component: str, name: str) -> str:
        rename = renames.get(component)
        return (rename(name) if rename else None) or name

    return CheckoutModel(tuple(expected), naming, checkout.record)
