"""The student reward model: a LoRA on Qwen3.5 that answers as the judge did."""
