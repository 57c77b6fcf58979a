"""Samples as files: text, DNA as FASTA, images as one PNG with all of them in a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rdlm.api.generate import Generation, Sample
from rdlm.api.language_model import LanguageModel
from rdlm.data.image import encode_png
from rdlm.errors import InputError
from rdlm.storage.files import write_atomic

FASTA_WIDTH = 70
LONGEST_SIDE = 256
"""Least number of pixels per side of a grid; small images are enlarged by an integer factor."""


def write_samples(model: LanguageModel, generation: Generation, path: Path) -> None:
    """Write all samples into one file, in the format of the model's modality."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder: give a file")
    match model.kind:
        case "image":
            write_atomic(path, encode_png(picture(model, generation.samples)))
        case "dna":
            write_atomic(path, fasta(generation.samples))
        case _:
            write_atomic(path, "".join(f"{sample.text}\n" for sample in generation.samples))


def fasta(samples: Sequence[Sample]) -> str:
    """Return the samples in FASTA, each under its seed, in lines of 70 bases."""
    records = []
    for sample in samples:
        lines = [sample.text[at : at + FASTA_WIDTH] for at in range(0, len(sample.text), FASTA_WIDTH)]
        records.append("\n".join([f">sample seed={sample.seed} length={len(sample.text)}", *lines]))
    return "\n".join(records) + "\n"


def picture(model: LanguageModel, samples: Sequence[Sample]) -> NDArray[np.uint8]:
    """Return the samples side by side [height, width, channels], a pixel between them, small ones enlarged."""
    shape, levels = model.about["image"], model.tokenizer.size
    return grid([(np.array(sample.tokens).reshape(shape) * 255 // (levels - 1)).astype(np.uint8) for sample in samples])


def grid(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return images of one shape side by side in rows, a grey pixel between them, small ones enlarged."""
    height, width, channels = images[0].shape
    columns = math.ceil(math.sqrt(len(images)))
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, channels), 128, np.uint8)
    for index, pixels in enumerate(images):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        sheet[top : top + height, left : left + width] = pixels
    factor = max(1, LONGEST_SIDE // max(sheet.shape[:2]))
    return sheet.repeat(factor, 0).repeat(factor, 1)
