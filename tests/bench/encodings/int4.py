"""Weights of four bits, as an engine may serve them: llama.cpp's Q4_0."""

import torch

# Weights that share a step, along the inputs of a layer.
GROUP = 32


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """The numbers that `weight` [outputs, inputs], float32, has in four bits. In every group of 32
    inputs these are the nearest multiples, from -8 to 7, of a step of its own, of which the weight
    with the largest magnitude is -8. (A file has the step in float16; here it is float32.)"""
    groups = weight.reshape(len(weight), -1, GROUP)
    step = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    # A group of zeros stays as it is.
    step = torch.where(step == 0, torch.ones_like(step), step)
    return ((groups / step).round().clamp(-8, 7) * step).reshape(weight.shape)


def rounded_if_linear(name: str, weight: torch.Tensor) -> torch.Tensor:
    return rounded(weight) if is_linear_of_decoder(name) else weight


def is_linear_of_decoder(name: str) -> bool:
    """Whether transformers calls a matrix of attention or of a feed-forward network so; embeddings,
    the head and norms are none."""
    return ".layers." in name and name.endswith("_proj.weight")
