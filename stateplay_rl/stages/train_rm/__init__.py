"""`sprl train-rm`: groups and scores in, a LoRA student with its evaluation and gate out."""
