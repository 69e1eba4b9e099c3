"""The model function of the latent variant."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from diffsynth.models.latent_state import PREDICTOR
from diffsynth.models.stateplay_dit import sinusoid


def model_fn_stateplay_latent(
    dit,
    latents=None,
    timestep=None,
    context=None,
    keyboard_action=None,
    use_gradient_checkpointing=False,
    fuse_vae_embedding_in_latents=False,
    **kwargs,
):
    if not fuse_vae_embedding_in_latents or timestep.numel() != 1:
        raise ValueError("one timestep for the batch, first frame in slot 0")
    dit.calls += 1
    x = dit.patch_embedding(latents)
    f, h, w = x.shape[2:]
    x = x.flatten(2).transpose(1, 2)
    binned = F.adaptive_max_pool1d(keyboard_action.transpose(1, 2), f).transpose(1, 2)
    low, state = dit.latent_state_rollout(x[:, : h * w], (h, w), binned)
    times = torch.cat([torch.zeros(h * w), torch.ones((f - 1) * h * w)]).to(latents) * timestep
    t = dit.time_embedding(sinusoid(dit.freq_dim, times))[None]
    t_mod = dit.time_projection(t).unflatten(2, (6, -1))
    axes = [a.to(latents.device) for a in dit.angles]
    angles = torch.cat(
        [
            axes[0][:f].repeat_interleave(h * w, 0),
            axes[1][:h].repeat_interleave(w, 0).repeat(f, 1),
            axes[2][:w].repeat(f * h, 1),
        ],
        dim=1,
    )
    text = dit.text_embedding(context)
    for number, block in enumerate(dit.blocks):
        x = x + dit.action_embedders[number](binned).repeat_interleave(h * w, 1)
        inputs = (x, text, t_mod, angles, state, h * w, low.shape[2])
        x = checkpoint(block, *inputs, use_reentrant=False) if use_gradient_checkpointing else block(*inputs)
    x = dit.head(x, t)
    pt, ph, pw = dit.patch_size
    x = x.reshape(x.shape[0], f, h, w, pt, ph, pw, dit.out_dim)
    video = x.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(x.shape[0], dit.out_dim, f * pt, h * ph, w * pw)
    return {
        "pred_video": video,
        "G_seq_low": low,
        "G_seq": state,
        "transition_logits": getattr(dit, PREDICTOR)(low, binned),
        "action_binned": binned,
    }
