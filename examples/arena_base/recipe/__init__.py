"""Parts of the base model's recipe, in order: VAE, transition tokenizer and SFT, export."""

from recipe.check import part_check
from recipe.common import Recipe
from recipe.export import part_export
from recipe.sft import part_sft
from recipe.vae import part_vae

__all__ = ["Recipe", "part_check", "part_export", "part_sft", "part_vae"]
