"""Noise schedule of the stand-in checkout."""

from .flow_match import FlowMatchScheduler

__all__ = ["FlowMatchScheduler"]
