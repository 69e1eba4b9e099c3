"""A linear video VAE with the public class's calling convention: 8 x 8 pixels and 4 frames per latent value."""

import torch
from torch import nn

SIDE = 8


class Coder(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Linear(3 * SIDE * SIDE, channels)


class Network(nn.Module):
    def __init__(self, z_dim):
        super().__init__()
        self.z_dim = z_dim
        self.encoder, self.decoder = Coder(z_dim), nn.Module()
        self.decoder.conv1 = nn.Linear(z_dim, 3 * SIDE * SIDE)


class WanVideoVAE38(nn.Module):
    def __init__(self, z_dim=48):
        super().__init__()
        self.model = Network(z_dim)
        self.mean, self.std = torch.full((z_dim,), 0.1), torch.full((z_dim,), 2.0)
        self.upsampling_factor = SIDE

    def encode(self, videos, device, tiled=False, tile_size=(34, 34), tile_stride=(18, 16)):
        return torch.stack([self._encode(video.to(device)) for video in videos])

    def _encode(self, video):
        groups = [video[:, :1]] + [video[:, s : s + 4] for s in range(1, video.shape[1], 4)]
        still = torch.stack([g.mean(1) for g in groups], 1)
        cells = still.unfold(2, SIDE, SIDE).unfold(3, SIDE, SIDE).permute(1, 2, 3, 0, 4, 5).flatten(3)
        z = self.model.encoder.conv1(cells).permute(3, 0, 1, 2)
        return (z - self.mean.to(z)[:, None, None, None]) / self.std.to(z)[:, None, None, None]

    def decode(self, hidden_states, device, tiled=False, tile_size=(34, 34), tile_stride=(18, 16)):
        videos = []
        for latent in hidden_states.to(device):
            z = latent * self.std.to(latent)[:, None, None, None] + self.mean.to(latent)[:, None, None, None]
            cells = self.model.decoder.conv1(z.permute(1, 2, 3, 0)).unflatten(-1, (3, SIDE, SIDE))
            still = cells.permute(3, 0, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
            videos.append(torch.cat([still[:, :1], still[:, 1:].repeat_interleave(4, 1)], 1))
        return torch.stack(videos).clamp(-1, 1)
