"""The 11 buttons, in the column order of action tables and of the model's action bins."""

from __future__ import annotations

BUTTONS = ("UP", "DOWN", "LEFT", "RIGHT", "Y", "X", "Z", "A", "B", "C", "D")
