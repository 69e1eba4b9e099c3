"""Prompts to text context: a cleaned prompt, its tokens, and the UMT5 encoder's hidden states.

Shapes: B batch, L text tokens (fixed), D text width.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from stateplay_rl.errors import InputError
from stateplay_rl.stores.atomic import write_bytes
from stateplay_rl.worlds.native.original_names import TEXT_MARK, text_from_original
from stateplay_rl.worlds.native.weights import load_exactly
from stateplay_rl.worlds.preparation import clean_prompt

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
TIED_EMBEDDING = "encoder.embed_tokens.weight"
"""The same tensor as `shared.weight`; written once."""

CACHE_BYTES = 256 << 20
"""Contexts kept by an encoder; at full size a prompt of 100 tokens takes 1.6 MB."""


@dataclass(frozen=True)
class TextArchitecture:
    """Sizes of the text encoder; the vocabulary's size comes from the weight file.

    Args:
        tokens: L, the fixed length that prompts are padded or cut to.
        d_model: D, width of the hidden states.
    """

    tokens: int
    d_model: int
    num_layers: int
    num_heads: int
    d_kv: int
    d_ff: int


TEXT_PRESETS: Mapping[str, TextArchitecture] = {
    "stateplay-5b": TextArchitecture(tokens=512, d_model=4096, num_layers=24, num_heads=64, d_kv=64, d_ff=10240),
    "arena": TextArchitecture(tokens=48, d_model=32, num_layers=2, num_heads=2, d_kv=16, d_ff=64),
}


def build_text_model(architecture: TextArchitecture, vocabulary: int) -> Any:
    """An UMT5 encoder with random weights, in eval mode, frozen (dropout 0: features must not vary)."""
    sizes = {key: value for key, value in asdict(architecture).items() if key != "tokens"}
    config = UMT5Config(vocab_size=vocabulary, dropout_rate=0.0, **sizes)
    return UMT5EncoderModel(config).eval().requires_grad_(False)


class TextEncoder:
    """Prompt -> context [L, D] in float32, positions past the prompt zeroed; cached by prompt.

    The cache and the model are guarded by a lock: samplers in several threads may share one encoder.
    """

    def __init__(self, architecture: TextArchitecture, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
        self.architecture = architecture
        self.model = model
        self._tokenizer: Any = tokenizer
        self.cache_bytes = CACHE_BYTES
        self._contexts: OrderedDict[str, Tensor] = OrderedDict()
        self._cached_bytes = 0
        self._lock = threading.Lock()
        self._parked_from: torch.device | None = None

    @classmethod
    def from_weights(
        cls,
        architecture: TextArchitecture,
        weights: Mapping[str, Tensor],
        tokenizer_file: Path,
        source: str,
    ) -> TextEncoder:
        """Build from tensors under transformers' names (`shared.weight`, …) or those of the original file.

        Raises:
            InputError: keys that do not fit (named), or a tokenizer that is missing or has more tokens than
                the embedding has rows.
        """
        if TEXT_MARK in weights:
            weights = text_from_original(weights)
        if "shared.weight" not in weights:
            raise InputError(f"{source}: key shared.weight is missing", "give the text encoder's weight file")
        rows = int(weights["shared.weight"].shape[0])
        model = build_text_model(architecture, rows)
        load_exactly(model, weights, source, optional=(TIED_EMBEDDING,))
        tokenizer = load_tokenizer(tokenizer_file)
        check_rows(tokenizer, rows, tokenizer_file, source)
        return cls(architecture, model, tokenizer)

    def to(self, device: torch.device, dtype: torch.dtype) -> TextEncoder:
        """Move the encoder; contexts stay float32 on the CPU until they are asked for."""
        self.model.to(device=device, dtype=dtype)
        return self

    def park(self) -> None:
        """Keep the weights on the host from now on; they visit their device while a new prompt is encoded.

        At full size they take 11 GB of a card and a second to come back, once for each distinct prompt.
        """
        self._parked_from = self.device
        self.model.to("cpu")

    @property
    def device(self) -> torch.device:
        """Where prompts are encoded, and where contexts go."""
        device: torch.device = self._parked_from or self.model.device
        return device

    @contextmanager
    def _weights_on_device(self) -> Iterator[None]:
        if self._parked_from is None:
            yield
            return
        resting = [(tensor, tensor.data) for tensor in (*self.model.parameters(), *self.model.buffers())]
        try:
            for tensor, data in resting:
                tensor.data = data.to(self._parked_from)
            yield
        finally:
            for tensor, data in resting:
                tensor.data = data

    def tokenise(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Cleaned prompts -> ids and mask, int64 [B, L]; longer prompts are cut, the end mark kept."""
        encoded = self._tokenizer(
            [clean_prompt(prompt) for prompt in prompts],
            padding="max_length",
            truncation=True,
            max_length=self.architecture.tokens,
            return_tensors="pt",
        )
        return encoded["input_ids"], encoded["attention_mask"]

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Contexts [B, L, D] float32 on the encoder's device; each distinct prompt is encoded once.

        Prompts go through the encoder one at a time: a context never depends on its batch.
        """
        with self._lock:
            contexts = [self._context(prompt) for prompt in prompts]
        padded = [F.pad(context, (0, 0, 0, self.architecture.tokens - len(context))) for context in contexts]
        return torch.stack(padded).to(self.device)

    def _context(self, prompt: str) -> Tensor:
        """The part of a prompt's context that is not zero, [L', D]; the oldest entries make room."""
        if prompt in self._contexts:
            self._contexts.move_to_end(prompt)
            return self._contexts[prompt]
        ids_BL, mask_BL = self.tokenise([prompt])
        with self._weights_on_device():
            context_LD = encode_tokens(self.model, ids_BL, mask_BL)[0, : int(mask_BL.sum())].cpu().clone()
        self._contexts[prompt] = context_LD
        self._cached_bytes += context_LD.nbytes
        while self._cached_bytes > self.cache_bytes and len(self._contexts) > 1:
            self._cached_bytes -= self._contexts.popitem(last=False)[1].nbytes
        return context_LD

    def export_weights(self) -> dict[str, Tensor]:
        """Tensors under the key names that `from_weights` reads; the tied embedding once."""
        state: dict[str, Tensor] = self.model.state_dict()
        return {name: value for name, value in state.items() if name != TIED_EMBEDDING}

    def length(self, prompt: str) -> int:
        """Tokens of a prompt, end mark included: the part of the context that is not zero."""
        return int(self.tokenise([prompt])[1].sum())


@torch.no_grad()
def encode_tokens(model: Any, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
    """Hidden states [B, L, D] float32 positions past the mask set to 0 as in the training repository."""
    mask_BL = mask_BL.to(model.device)
    hidden_BLD: Tensor = model(input_ids=ids_BL.to(model.device), attention_mask=mask_BL).last_hidden_state
    return hidden_BLD.float() * mask_BL[..., None].float()


def check_rows(tokenizer: PreTrainedTokenizerFast, rows: int, tokenizer_file: Path, source: str) -> None:
    """Raise InputError when the tokenizer has more tokens than the embedding has rows."""
    if len(tokenizer) > rows:
        raise InputError(
            f"{tokenizer_file} has {len(tokenizer)} tokens, {source} only {rows} embeddings",
            "give the tokenizer that the text encoder was trained with",
        )


def load_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a `tokenizer.json` (or of the folder that holds one).

    Raises:
        InputError: the file is missing or not a tokenizer file.
    """
    path = file / "tokenizer.json" if file.is_dir() else file
    if not path.is_file():
        raise InputError(f"tokenizer file not found: {path}", "check text_tokenizer in the world file")
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:
        raise InputError(f"{path} is not a tokenizer file ({error})", "give a tokenizers JSON file") from error
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, padding_side="right"
    )


def train_tokenizer(texts: Iterable[str], file: Path, vocabulary: int = 1024) -> int:
    """Train a small word-level tokenizer (words and punctuation, lower case) and write it atomically.

    Args:
        texts: raw prompts; cleaned here as they will be at encoding time.
        file: the `tokenizer.json` to write.
        vocabulary: the most tokens to keep, the three special ones included.

    Returns:
        The number of tokens.
    """
    tokenizer: Any = Tokenizer(WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = WordLevelTrainer(vocab_size=vocabulary, special_tokens=[PAD, END, UNKNOWN], show_progress=False)
    # Sorted and counted by the trainer: the same set of texts gives the same file.
    tokenizer.train_from_iterator(sorted(clean_prompt(text) for text in texts), trainer)
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    write_bytes(file, tokenizer.to_str(pretty=True).encode("utf-8"))
    return int(tokenizer.get_vocab_size())
