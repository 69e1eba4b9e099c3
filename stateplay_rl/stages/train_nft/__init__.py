"""The on-policy training stage; `run.run` is the stage's entry."""
