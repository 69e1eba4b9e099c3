"""Small models of the real classes with a tokenizer of their own, built offline: arena's student, and the tests'.

The tokenizer is a byte-level BPE with Qwen's pre-tokenisation and special tokens, so digits are separate tokens and
no text is out of vocabulary. The chat template renders what Qwen3.5's own template renders with thinking off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stateplay_rl.reward_model.pictures import SETTINGS

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
)
# Qwen's: contractions, words with one leading character, single digits, punctuation, line ends, spaces.
PRE_TOKENS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{ message.content }}{%- else %}"
    "{%- for part in message.content %}{%- if part.type == 'image' %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}"
)


@dataclass(frozen=True)
class SmallSizes:
    """Sizes of a small Qwen3.5; defaults are those of the tests.

    Args:
        hidden, layers, intermediate: of the language model; every `full_interval`-th layer is full attention.
        heads, kv_heads, head_dim: of full attention.
        linear_heads, linear_dim: of the DeltaNet layers, keys; values have `linear_value_heads` heads.
        vision_hidden, vision_layers, vision_heads: of the vision tower; `patch` pixels a patch.
        smallest_pixels, largest_pixels: pictures are scaled into this range.
    """

    hidden: int = 32
    layers: int = 4
    full_interval: int = 4
    intermediate: int = 64
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 16
    linear_heads: int = 2
    linear_value_heads: int = 4
    linear_dim: int = 8
    vision_hidden: int = 32
    vision_layers: int = 2
    vision_heads: int = 2
    vision_intermediate: int = 64
    patch: int = 16
    vocabulary: int = 512
    smallest_pixels: int = 1024
    largest_pixels: int = 1 << 20


def train_tokenizer(texts: Iterable[str], vocabulary: int, phrases: Sequence[str] = ()) -> Any:
    """A byte-level BPE tokenizer with Qwen's special tokens.

    Args:
        texts: what it should write briefly; the same texts give the same tokenizer.
        vocabulary: most tokens, special ones included, phrases not.
        phrases: fixed texts that become one token each: a small model need not read what never changes.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend: Any = Tokenizer(models.BPE())
    split: Any = pre_tokenizers.Split(Regex(PRE_TOKENS), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(sorted(texts), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    # Longest first: a phrase may begin with a shorter one.
    ordered = sorted(set(phrases), key=lambda phrase: (-len(phrase), phrase))
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in ordered])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_config(sizes: SmallSizes, tokenizer: Any) -> Any:
    """`Qwen3_5Config` of these sizes; token ids from the tokenizer."""
    from transformers import Qwen3_5Config

    rotary = sizes.head_dim // 2
    return Qwen3_5Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.intermediate,
            "num_hidden_layers": sizes.layers,
            "layer_types": [
                "linear_attention" if (i + 1) % sizes.full_interval else "full_attention" for i in range(sizes.layers)
            ],
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "linear_key_head_dim": sizes.linear_dim,
            "linear_value_head_dim": sizes.linear_dim,
            "linear_num_key_heads": sizes.linear_heads,
            "linear_num_value_heads": sizes.linear_value_heads,
            "max_position_embeddings": 65536,
            "tie_word_embeddings": False,
            "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
            "pad_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
            # Half of the head rotates; the three sections add up to half of that.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_interleaved": True,
                "mrope_section": [rotary // 2 - 2 * (rotary // 6), rotary // 6, rotary // 6],
            },
        },
        vision_config={
            "depth": sizes.vision_layers,
            "hidden_size": sizes.vision_hidden,
            "intermediate_size": sizes.vision_intermediate,
            "num_heads": sizes.vision_heads,
            "patch_size": sizes.patch,
            "out_hidden_size": sizes.hidden,
            "num_position_embeddings": 64,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def build_model(config: Any, seed: int) -> Any:
    """A model with seeded random weights, float32 on the CPU; the global generator is left as it was."""
    from transformers import Qwen3_5ForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3_5ForConditionalGeneration._from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def write_folder(folder: Path, model: Any, tokenizer: Any, sizes: SmallSizes) -> None:
    """A model folder as `load_base` reads it."""
    model.save_pretrained(str(folder), safe_serialization=True)
    tokenizer.save_pretrained(str(folder))
    settings = {
        "image_processor_type": "Qwen2VLImageProcessorPil",
        "patch_size": sizes.patch,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"shortest_edge": sizes.smallest_pixels, "longest_edge": sizes.largest_pixels},
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
