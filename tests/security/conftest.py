"""The arena inputs of the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import arena

__all__ = ["arena"]
