"""The latent modules of docs/latent-modules.md, written from that page in plain loops.

Laid over the stand-in checkout in the place of its own `diffsynth/models/latent_state.py`.
"""

import math

import torch
from torch import nn

PREDICTOR = "transition_predictor"
HEADS = 4
INNER = 2
COUPLING_EPS = 1e-6


def sinusoid(place, width):
    frequencies = [10000 ** (-k / (width // 2)) for k in range(width // 2)]
    angles = [place * frequency for frequency in frequencies]
    return [math.cos(angle) for angle in angles] + [math.sin(angle) for angle in angles]


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def standardise(x, eps):
    away = x - x.mean(-1, keepdim=True)
    return away / (away.square().mean(-1, keepdim=True) + eps).sqrt()


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return standardise(x, 1e-5) * self.weight + self.bias


class Mlp(nn.ModuleDict):
    def __init__(self, width):
        super().__init__({"0": nn.Linear(width, INNER * width), "2": nn.Linear(INNER * width, width)})

    def forward(self, x):
        return self["2"](gelu(self["0"](x)))


class Reading(nn.Module):
    """A(x, y): a head at a time, without batches of heads."""

    def __init__(self, width, other, inner):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, inner), nn.Linear(other, inner), nn.Linear(other, inner)
        self.out = nn.Linear(inner, width)

    def forward(self, x, y):
        q, k, v = self.q(x), self.k(y), self.v(y)
        size = q.shape[-1] // HEADS
        heads = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            weights = (q[..., part] @ k[..., part].transpose(-1, -2) / math.sqrt(size)).softmax(-1)
            heads.append(weights @ v[..., part])
        return self.out(torch.cat(heads, -1))


class LatentStateAttention(Reading):
    """Slot by slot: the tokens of slot i read the states of slots 0..i. The caller multiplies with the gate."""

    def __init__(self, dim, width):
        super().__init__(dim, dim, width)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, video, state, tokens_per_slot, states_per_slot):
        updates = []
        for slot in range(video.shape[1] // tokens_per_slot):
            tokens = video[:, slot * tokens_per_slot : (slot + 1) * tokens_per_slot]
            seen = state[:, : (slot + 1) * states_per_slot]
            updates.append(super().forward(standardise(tokens, COUPLING_EPS), seen))
        return torch.cat(updates, 1)


class Initializer(nn.Module):
    def __init__(self, dim, state_dim, state_tokens):
        super().__init__()
        self.project, self.norm_tokens = nn.Linear(dim, state_dim), Norm(state_dim)
        self.queries = nn.Parameter(torch.randn(state_tokens, state_dim))
        self.attention = Reading(state_dim, state_dim, state_dim)
        self.norm_mlp, self.mlp, self.norm = Norm(state_dim), Mlp(state_dim), Norm(state_dim)

    def forward(self, patches, grid):
        tokens = self.norm_tokens(self.project(patches))
        half = tokens.shape[-1] // 2
        places = [sinusoid(row, half) + sinusoid(column, half) for row in range(grid[0]) for column in range(grid[1])]
        tokens = tokens + torch.tensor(places).to(tokens)
        state = self.queries + self.attention(self.queries.expand(len(tokens), -1, -1), tokens)
        return self.norm(state + self.mlp(self.norm_mlp(state)))


class Layer(nn.Module):
    def __init__(self, state_dim):
        super().__init__()
        self.norm1, self.attention = Norm(state_dim), Reading(state_dim, state_dim, state_dim)
        self.norm2, self.mlp = Norm(state_dim), Mlp(state_dim)

    def forward(self, x):
        looked = self.norm1(x)
        x = x + self.attention(looked, looked)
        return x + self.mlp(self.norm2(x))


class Transition(nn.Module):
    def __init__(self, state_dim, num_buttons):
        super().__init__()
        self.action_embedding = nn.Linear(num_buttons, state_dim, bias=False)
        self.step_embedding = nn.Linear(state_dim, state_dim)
        self.layers = nn.ModuleList([Layer(state_dim) for _ in range(2)])
        self.delta, self.norm = nn.Linear(state_dim, state_dim), Norm(state_dim)

    def forward(self, state, action, step):
        place = torch.tensor(sinusoid(step, state.shape[-1])).to(state)
        x = state + (self.action_embedding(action) + self.step_embedding(place))[:, None]
        for layer in self.layers:
            x = layer(x)
        return self.norm(state + self.delta(x))


class LatentStateRollout(nn.Module):
    def __init__(self, dim, state_dim, state_tokens, num_buttons, steps):
        super().__init__()
        self.initializer = Initializer(dim, state_dim, state_tokens)
        self.transition = Transition(state_dim, num_buttons)
        self.output_projection = nn.Linear(state_dim, dim)

    def forward(self, patches, grid, actions):
        states = [self.initializer(patches, grid)]
        for step in range(actions.shape[1] - 1):
            states.append(self.transition(states[-1], actions[:, step], step))
        low = torch.stack(states, 1)
        return low, self.output_projection(low).flatten(1, 2)


class Predictor(nn.Module):
    def __init__(self, state_dim, num_buttons, codes):
        super().__init__()
        self.action_embedding = nn.Linear(num_buttons, state_dim, bias=False)
        self.norm, self.hidden = Norm(state_dim), nn.Linear(state_dim, state_dim)
        self.head = nn.Linear(state_dim, codes)

    def forward(self, low, actions):
        before = low[:, :-1] + self.action_embedding(actions[:, :-1])[:, :, None]
        return self.head(gelu(self.hidden(self.norm(before))))
