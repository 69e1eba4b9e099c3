"""The 11 buttons in their fixed order, for code that must not import torch."""

from __future__ import annotations

BUTTONS = ("UP", "DOWN", "LEFT", "RIGHT", "Y", "X", "Z", "A", "B", "C", "D")
