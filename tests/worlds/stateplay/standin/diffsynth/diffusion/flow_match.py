"""The flow-matching schedule: sigma = shift u / (1 + (shift - 1) u), u from 1 down to 1/steps."""

import torch


class FlowMatchScheduler:
    def __init__(self, template="FLUX.1"):
        self.template = template

    def set_timesteps(self, num_inference_steps=100, shift=5.0):
        if self.template != "Wan":
            raise ValueError(self.template)
        u = torch.tensor([1 - k / num_inference_steps for k in range(num_inference_steps)], dtype=torch.float64)
        self.sigmas = (shift * u / (1 + (shift - 1) * u)).float()
        self.timesteps = self.sigmas * 1000
