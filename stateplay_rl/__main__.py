"""``python -m stateplay_rl`` and ``accelerate launch -m stateplay_rl`` are ``sprl``."""

from stateplay_rl.cli.main import entry

if __name__ == "__main__":
    entry()
