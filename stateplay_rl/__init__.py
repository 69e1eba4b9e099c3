"""Post-training of an interactive game world model with reinforcement learning (DiffusionNFT)."""

__version__ = "0.1.0"
