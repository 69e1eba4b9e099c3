"""An implicit latent state of the stand-in's own: simple formulas that no other code shares."""

import torch
from torch import nn

PREDICTOR = "latent_state_predictor"


class LatentStateAttention(nn.Module):
    """Video tokens ask state tokens of their own and earlier slots."""

    def __init__(self, dim, width):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, width), nn.Linear(dim, width), nn.Linear(dim, width)
        self.out = nn.Linear(width, dim)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, video, state, tokens_per_slot, states_per_slot):
        q, k, v = self.q(video), self.k(state), self.v(state)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        slot_of_query = torch.arange(video.shape[1], device=video.device) // tokens_per_slot
        slot_of_key = torch.arange(state.shape[1], device=video.device) // states_per_slot
        scores = scores.masked_fill(slot_of_key[None] > slot_of_query[:, None], float("-inf"))
        return self.out(scores.softmax(-1) @ v)


class Initializer(nn.Module):
    def __init__(self, dim, state_dim, state_tokens):
        super().__init__()
        self.reduce = nn.Linear(dim, state_dim)
        self.asks = nn.Parameter(torch.randn(state_tokens, state_dim))

    def forward(self, patches):
        reduced = self.reduce(patches)
        weights = (self.asks[None] @ reduced.transpose(1, 2) / reduced.shape[-1] ** 0.5).softmax(-1)
        return weights @ reduced


class Transition(nn.Module):
    def __init__(self, state_dim, num_buttons, steps):
        super().__init__()
        self.action_embedding = nn.Linear(num_buttons, state_dim)
        self.step_embedding = nn.Embedding(steps, state_dim)
        self.mix = nn.ModuleList([nn.Linear(state_dim, state_dim) for _ in range(2)])
        self.delta = nn.Linear(state_dim, state_dim)
        self.norm = nn.LayerNorm(state_dim)

    def forward(self, state, action, step):
        number = torch.tensor([step], device=state.device)
        x = state + (self.action_embedding(action) + self.step_embedding(number))[:, None]
        for layer in self.mix:
            x = x + torch.tanh(layer(x)) + x.mean(1, keepdim=True)
        return self.norm(state + self.delta(x))


class LatentStateRollout(nn.Module):
    def __init__(self, dim, state_dim, state_tokens, num_buttons, steps):
        super().__init__()
        self.initializer = Initializer(dim, state_dim, state_tokens)
        self.transition = Transition(state_dim, num_buttons, steps)
        self.output_projection = nn.Linear(state_dim, dim)

    def forward(self, patches, grid, actions):
        states = [self.initializer(patches)]
        for step in range(actions.shape[1] - 1):
            states.append(self.transition(states[-1], actions[:, step], step))
        low = torch.stack(states, 1)
        return low, self.output_projection(low).flatten(1, 2)


class Predictor(nn.Module):
    def __init__(self, state_dim, num_buttons, codes):
        super().__init__()
        self.action_embedding = nn.Linear(num_buttons, state_dim)
        self.classes = nn.Linear(state_dim, codes)

    def forward(self, low, actions):
        return self.classes(low[:, :-1] + self.action_embedding(actions[:, :-1])[:, :, None])
