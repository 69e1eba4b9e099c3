"""Content hashes of arrays and tensors: element type, shape and bytes, independent of any file format."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def hash_array(array: np.ndarray) -> str:
    """Hex sha256 over element type, shape and little-endian C-order bytes."""
    contiguous = np.ascontiguousarray(array)
    contiguous = contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False)
    return _hash(str(contiguous.dtype.name), array.shape, contiguous.tobytes())


def hash_frames(frames_ThwC: np.ndarray) -> str:
    """Hash of uint8 pictures, before any encoding.

    Raises:
        TypeError: not uint8.
    """
    if frames_ThwC.dtype != np.uint8:
        raise TypeError(f"frames must be uint8, not {frames_ThwC.dtype}")
    return hash_array(frames_ThwC)


def hash_tensor(tensor: Tensor) -> str:
    """Hex sha256 over element type, shape and bytes of a tensor of any dtype and device."""
    import torch

    plain = tensor.detach().cpu().contiguous()
    # uint8 view: numpy knows no bfloat16.
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    return _hash(str(plain.dtype).removeprefix("torch."), tuple(plain.shape), data)


def _hash(dtype: str, shape: tuple[int, ...], data: bytes) -> str:
    header = f"{dtype}[{','.join(str(n) for n in shape)}]".encode()
    return hashlib.sha256(header + b"\n" + data).hexdigest()
