"""Drawn pictures to train denoisers on beside photographs: text, lines, shapes, gratings.

A network that saw photographs alone takes thin lines and fine patterns for noise.
"""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

__all__ = ["drawing"]

HEIGHT, WIDTH = 320, 480  # about as large as BSD's
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?()+-=/&%"


def drawing(seed: int, channels: int = 1) -> Tensor:
    """One picture, the same for the same seed and version of Pillow.

    Args:
        seed: which one, from 0 on.
        channels: 1 for gray, 3 for colour.

    Returns:
        uint8 `[channels, 320, 480]`.
    """
    chance = random.Random(seed)
    scale = chance.choice((1, 2))  # drawn at twice the size and made smaller, edges are smooth
    picture = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), _colour(chance, channels))
    kind = chance.choice((_text, _text, _lines, _shapes, _grating))
    kind(picture, chance, channels, scale)
    pixels = np.asarray(picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[:channels].contiguous()


def _colour(chance: random.Random, channels: int) -> tuple[int, int, int]:
    """Any colour or gray; half of the values are black or white."""
    values = [chance.choice((0, 255, chance.randrange(256), chance.randrange(256))) for _ in range(channels)]
    red, green, blue = values * (3 // channels)
    return red, green, blue


def _text(picture: Image.Image, chance: random.Random, channels: int, scale: int) -> None:
    """A page of one size of type; some lines in another colour."""
    draw, size = ImageDraw.Draw(picture), chance.randint(7, 30) * scale
    font = ImageFont.load_default(size=size)
    ink = _colour(chance, channels)
    for top in range(0, picture.height, round(size * 1.3)):
        words = ("".join(chance.choices(LETTERS, k=chance.randint(1, 9))) for _ in range(60))
        draw.text((chance.randrange(size), top), " ".join(words), font=font, fill=ink)
        if chance.random() < 0.1:
            ink = _colour(chance, channels)


def _lines(picture: Image.Image, chance: random.Random, channels: int, scale: int) -> None:
    """Line art: straight lines and arcs, one to three pixels wide."""
    draw, ink = ImageDraw.Draw(picture), _colour(chance, channels)
    for _ in range(chance.randint(20, 120)):
        (x0, y0), (x1, y1) = _point(picture, chance), _point(picture, chance)
        width = chance.randint(1, 3) * scale
        if chance.random() < 0.5:
            draw.line((x0, y0, x1, y1), fill=ink, width=width)
        else:
            box = (min(x0, x1), min(y0, y1), max(x0, x1) + 1, max(y0, y1) + 1)
            draw.arc(box, chance.randrange(360), chance.randrange(360), fill=ink, width=width)
        if chance.random() < 0.1:
            ink = _colour(chance, channels)


def _shapes(picture: Image.Image, chance: random.Random, channels: int, scale: int) -> None:
    """Filled triangles, rectangles and ellipses over each other."""
    draw = ImageDraw.Draw(picture)
    for _ in range(chance.randint(20, 80)):
        x, y = _point(picture, chance)
        width, height = (chance.randint(3, 120) * scale for _ in range(2))
        ink = _colour(chance, channels)
        corners = [(x + chance.randint(-width, width), y + chance.randint(-height, height)) for _ in range(3)]
        box, shape = (x, y, x + width, y + height), chance.randrange(3)
        if shape == 0:
            draw.rectangle(box, fill=ink)
        elif shape == 1:
            draw.ellipse(box, fill=ink)
        else:
            draw.polygon(corners, fill=ink)


def _grating(picture: Image.Image, chance: random.Random, channels: int, scale: int) -> None:
    """Stripes in eight fields, each of its own direction and period, 2 to 16 pixels; square or sine; two colours."""
    pixels = np.asarray(picture).astype(np.float64)
    rows, columns = np.mgrid[: picture.height, : picture.width]
    for top in range(0, picture.height, picture.height // 2):
        for left in range(0, picture.width, picture.width // 4):
            field = np.s_[top : top + picture.height // 2, left : left + picture.width // 4]
            angle = chance.choice((0.0, math.pi / 2, chance.uniform(0, math.pi)))
            period = chance.choice((2, 3, 4, chance.uniform(2, 16))) * scale
            along = rows[field] * math.sin(angle) + columns[field] * math.cos(angle)
            wave = np.sin(2 * math.pi * (along + 0.25 * scale) / period + chance.uniform(0, 0.5))
            share = (wave > 0) if chance.random() < 0.5 else (wave + 1) / 2
            first, second = np.array(_colour(chance, channels)), np.array(_colour(chance, channels))
            pixels[field] = first + (second - first) * share[..., None]
    picture.paste(Image.fromarray(pixels.round().astype(np.uint8)))


def _point(picture: Image.Image, chance: random.Random) -> tuple[int, int]:
    return chance.randrange(picture.width), chance.randrange(picture.height)
