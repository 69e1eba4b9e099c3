"""Pictures that a HUD reader must survive, and pictures that it must refuse: for tests, and to try a new profile.

Survive: another size, a crop that is a few pixels off, blur, JPEG, a stand-in for a VAE's round trip. Refuse: noise,
foreign pictures, covered bars. All of it is drawn from a seed. Pictures are uint8 RGB [h, w, 3].
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from stateplay_rl.evaluation.profile import TIMER, Box, HudProfile

Picture = NDArray[np.uint8]
MODEL_SIZE = (832, 480)
"""Width and height of a frame as the model sees it."""


def cover_size(picture: Picture, width: int = MODEL_SIZE[0], height: int = MODEL_SIZE[1]) -> Picture:
    """Scaled to cover a size (bilinear) and centre-cropped, as the model's first frames are."""
    scale = max(width / picture.shape[1], height / picture.shape[0])
    size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    image = Image.fromarray(picture).resize(size, Image.Resampling.BILINEAR)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return np.asarray(image.crop((left, top, left + width, top + height)))


def blur(picture: Picture, radius: float) -> Picture:
    """Gaussian blur; the radius is its deviation in pixels."""
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(radius)))


def jpeg(picture: Picture, quality: int) -> Picture:
    """A JPEG round trip with halved chroma."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=quality, subsampling=2)
    return np.asarray(Image.open(buffer).convert("RGB"))


def vae_stand_in(picture: Picture, seed: int = 0) -> Picture:
    """Like a VAE's round trip: fine detail gone, colours a little pale, faint noise."""
    height, width = picture.shape[:2]
    small = Image.fromarray(picture).resize((round(width / 1.4), round(height / 1.4)), Image.Resampling.BILINEAR)
    soft = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
    grey = soft.mean(axis=-1, keepdims=True)
    pale = 4.0 + 0.97 * (grey + 0.95 * (soft - grey))
    noisy = pale + np.random.default_rng(seed).normal(0.0, 3.0, picture.shape)
    found: Picture = np.clip(noisy, 0, 255).astype(np.uint8)
    return found


def shifted(picture: Picture, right: int, down: int) -> Picture:
    """Moved by whole pixels; the border's pixels repeat where nothing is left."""
    rows = np.clip(np.arange(picture.shape[0]) - down, 0, picture.shape[0] - 1)
    columns = np.clip(np.arange(picture.shape[1]) - right, 0, picture.shape[1] - 1)
    return np.ascontiguousarray(picture[rows][:, columns])


def cropped(picture: Picture, left: int, top: int, right: int, bottom: int) -> Picture:
    """Cut by pixels at the four sides and scaled back to the old size."""
    height, width = picture.shape[:2]
    image = Image.fromarray(picture).crop((left, top, width - right, height - bottom))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))


def degradations() -> Mapping[str, Callable[[Picture], Picture]]:
    """What a right reading must survive, by name."""
    ways: dict[str, Callable[[Picture], Picture]] = {
        "as it is": lambda p: p,
        "blur 0.6": lambda p: blur(p, 0.6),
        "blur 1": lambda p: blur(p, 1.0),
        "JPEG 60": lambda p: jpeg(p, 60),
        "VAE stand-in": vae_stand_in,
        "darker": lambda p: (p * 0.85).astype(np.uint8),
    }
    for right, down in ((4, 0), (-4, 0), (0, 4), (0, -4), (4, -4), (-4, 4)):
        ways[f"shift {right},{down}"] = lambda p, r=right, d=down: shifted(p, r, d)  # type: ignore[misc]
    ways["crop left top 4"] = lambda p: cropped(p, 4, 4, 0, 0)
    ways["crop right bottom 4"] = lambda p: cropped(p, 0, 0, 4, 4)
    return ways


def foreign_pictures(count: int, seed: int = 0, scenes: tuple[Picture, ...] = ()) -> list[tuple[str, Picture]]:
    """Noise and pictures of other things, by kind; of native and model size in turn.

    Args:
        count: how many.
        seed: of all draws.
        scenes: frames of the game; upside down and as enlarged parts without HUD they are foreign, too.
    """
    rng = np.random.default_rng(seed)
    kinds: list[tuple[str, Callable[[int, int], NDArray[np.generic]]]] = [
        ("uniform noise", lambda h, w: rng.integers(0, 256, (h, w, 3))),
        ("normal noise", lambda h, w: rng.normal(128, 40, (h, w, 3)).clip(0, 255)),
        ("clouds", lambda h, w: _clouds(rng, h, w)),
        ("stripes", lambda h, w: _stripes(rng, h, w)),
        ("board", lambda h, w: _board(rng, h, w)),
        ("gradient", _gradient),
        ("plain", lambda h, w: np.broadcast_to(rng.integers(0, 256, 3), (h, w, 3))),
        ("boxes", lambda h, w: _boxes(rng, h, w)),
    ]
    if scenes:
        kinds.append(("upside down", lambda h, w: _scaled(scenes[int(rng.integers(len(scenes)))][::-1], h, w)))
        kinds.append(("part of a scene", lambda h, w: _part(rng, scenes, h, w)))
    found = []
    for i in range(count):
        name, draw = kinds[i % len(kinds)]
        height, width = (224, 384) if (i // len(kinds)) % 2 == 0 else (480, 832)
        found.append((name, np.ascontiguousarray(draw(height, width)).astype(np.uint8)))
    return found


def _scaled(picture: NDArray[np.generic], height: int, width: int) -> Picture:
    image = Image.fromarray(np.ascontiguousarray(picture).astype(np.uint8))
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def _clouds(rng: np.random.Generator, height: int, width: int) -> Picture:
    cell = int(rng.integers(2, 40))
    return _scaled(rng.integers(0, 256, (height // cell + 2, width // cell + 2, 3)), height, width)


def _stripes(rng: np.random.Generator, height: int, width: int) -> NDArray[np.generic]:
    rows = np.arange(height) // int(rng.integers(1, 30)) % 2 * 255
    return np.broadcast_to(rows[:, None, None], (height, width, 3))


def _board(rng: np.random.Generator, height: int, width: int) -> NDArray[np.generic]:
    cell = int(rng.integers(3, 30))
    cells = (np.arange(height)[:, None] // cell + np.arange(width)[None, :] // cell) % 2 * 255
    return np.broadcast_to(cells[..., None], (height, width, 3))


def _gradient(height: int, width: int) -> NDArray[np.generic]:
    down, right = np.mgrid[0:height, 0:width]
    return np.stack([right * 255 / width, down * 255 / height, (down + right) * 255 / (height + width)], axis=-1)


def _boxes(rng: np.random.Generator, height: int, width: int) -> NDArray[np.generic]:
    picture = np.empty((height, width, 3), np.int64)
    picture[:] = rng.integers(0, 256, 3)
    for _ in range(60):
        top, left = int(rng.integers(height)), int(rng.integers(width))
        picture[top : top + int(rng.integers(2, 60)), left : left + int(rng.integers(2, 300))] = rng.integers(0, 256, 3)
    return picture


def _part(rng: np.random.Generator, scenes: tuple[Picture, ...], height: int, width: int) -> Picture:
    scene = scenes[int(rng.integers(len(scenes)))]
    rows, columns = scene.shape[0] * 2 // 5, scene.shape[1] * 2 // 5
    # Between the upper and the lower HUD.
    top = int(rng.integers(scene.shape[0] // 5, scene.shape[0] // 2))
    left = int(rng.integers(scene.shape[1] - columns))
    return _scaled(scene[top : top + rows, left : left + columns], height, width)


def element_box(profile: HudProfile, name: str) -> Box:
    """The native box of an element; the clock's digits together."""
    if name != TIMER:
        return profile.bars[name].box  # type: ignore[index]
    assert profile.timer is not None, "the profile shows a clock"
    lefts, tops = zip(*profile.timer.cells, strict=True)
    width, height = max(lefts) - min(lefts) + profile.timer.width, profile.timer.height
    return Box(left=min(lefts), top=min(tops), width=width, height=height)


def covered(picture: Picture, profile: HudProfile, name: str, rng: np.random.Generator) -> Picture:
    """A picture of native or model size with something over an element and the lines around it.

    The cover takes in all of the element or a part of it, and is black, grey, of one colour, noise, or another part of
    the picture.
    """
    box = element_box(profile, name)
    scale = picture.shape[1] / profile.width
    down = (picture.shape[0] - profile.height * scale) / 2
    margin = float(rng.uniform(2.0, 5.0))
    left, right = box.left - margin, box.right + margin
    if rng.random() < 0.4:
        share = float(rng.uniform(0.25, 0.8)) * box.width
        left = box.left + float(rng.uniform(0.0, box.width - share))
        right = left + share
    rows = [box.top - margin, box.bottom + margin]
    top, bottom = (max(0, round(row * scale + down)) for row in rows)
    first, past = max(0, round(left * scale)), max(0, round(right * scale))
    out = picture.copy()
    hole = out[top:bottom, first:past]
    kind = int(rng.integers(5))
    if kind == 0:
        hole[:] = rng.integers(0, 256, 3)
    elif kind == 1:
        hole[:] = rng.integers(0, 256, hole.shape)
    elif kind == 2:
        hole[:] = 0
    elif kind == 3:
        hole[:] = 128
    else:
        y = int(rng.integers(picture.shape[0] * 3 // 10, picture.shape[0] * 8 // 10 - hole.shape[0]))
        x = int(rng.integers(picture.shape[1] - hole.shape[1]))
        hole[:] = picture[y : y + hole.shape[0], x : x + hole.shape[1]]
    return out
