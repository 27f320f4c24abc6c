"""A rank of a PyTorch contestant: `gloo` (torch.distributed, DDP) or `hvd` (horovodlite.torch).

Carries out the commands of cases.py, one line at a time; see team.py.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

FLOAT_BYTES = 4


class Gloo:
    """torch.distributed with the Gloo backend, the one for CPU tensors."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def renew(self) -> int:
        return 0  # nothing here depends on what was measured before

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.dist.all_reduce(tensor)

    def allreduce_many(self, tensors: list[torch.Tensor]) -> None:
        works = [self.dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    def allreduce_group(self, tensors: list[torch.Tensor]) -> None:
        raise NotImplementedError("Gloo has no grouped allreduce")

    def barrier(self) -> None:
        self.dist.barrier()

    def distribute(self, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return parallel, sgd(model)

    def close(self) -> None:
        self.dist.destroy_process_group()


class Hvd:
    """horovodlite through its Python API."""

    def __init__(self) -> None:
        import horovodlite.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def renew(self) -> int:
        """Begins a session, as a program that does nothing else than what is measured next.

        Returns after how many iterations its plan is frozen, if the operations allow it.
        """
        self.hvd.shutdown()
        self.hvd.init()
        return 8

    def allreduce(self, tensor: torch.Tensor) -> None:
        self.hvd.allreduce_(tensor, op=self.hvd.Sum, name="bench")

    def allreduce_many(self, tensors: list[torch.Tensor]) -> None:
        handles = [
            self.hvd.allreduce_async_(tensor, op=self.hvd.Sum, name=f"bench.{index}")
            for index, tensor in enumerate(tensors)
        ]
        for handle in handles:
            self.hvd.synchronize(handle)

    def allreduce_group(self, tensors: list[torch.Tensor]) -> None:
        self.hvd.grouped_allreduce_(tensors, op=self.hvd.Sum, name="bench.group")

    def barrier(self) -> None:
        self.hvd.barrier()

    def distribute(self, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
        optimizer = self.hvd.DistributedOptimizer(
            sgd(model), named_parameters=model.named_parameters()
        )
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, optimizer

    def close(self) -> None:
        self.hvd.shutdown()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def resnet50_shapes() -> Iterator[tuple[int, ...]]:
    """The 161 parameters of ResNet-50: 25.6 million elements."""

    def convolution(outputs: int, inputs: int, width: int) -> Iterator[tuple[int, ...]]:
        yield (outputs, inputs, width, width)
        yield (outputs,)
        yield (outputs,)  # scale and shift of the normalisation after it

    yield from convolution(64, 3, 7)
    channels = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from convolution(planes, channels, 1)
            yield from convolution(planes, planes, 3)
            yield from convolution(4 * planes, planes, 1)
            if block == 0:
                yield from convolution(4 * planes, channels, 1)
            channels = 4 * planes
    yield (1000, channels)
    yield (1000,)


class Wide(nn.Module):
    """Parameters of given shapes and next to no computation: what remains is communication.

    The loss is the sum of the parameters' dot products with constants, so that each gradient is
    a constant, written once.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], scale: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self.constants = torch.linspace(0, scale, max(w.numel() for w in self.weights))

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        total = start
        for weight in self.weights:
            total = total + torch.dot(weight.flatten(), self.constants[: weight.numel()])
        return total

    def batch(self) -> torch.Tensor:
        return torch.zeros(())


class ConvNet(nn.Module):
    """A small real network: images of 32 by 32 pixels, 0.9 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        head = [nn.Flatten(), nn.Linear(256 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10)]
        self.layers = nn.Sequential(*layers, *head)
        self.images = torch.randn(16, 3, 32, 32)
        self.labels = torch.randint(10, (16,))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(images), self.labels)

    def batch(self) -> torch.Tensor:
        return self.images


class Bottleneck(nn.Module):
    """Three convolutions and what goes around them."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()

        def convolution(inputs: int, outputs: int, width: int, stride: int = 1) -> nn.Sequential:
            layer = nn.Conv2d(inputs, outputs, width, stride, padding=width // 2, bias=False)
            return nn.Sequential(layer, nn.BatchNorm2d(outputs))

        self.first = convolution(channels, planes, 1)
        self.second = convolution(planes, planes, 3, stride)
        self.third = convolution(planes, 4 * planes, 1)
        fits = stride == 1 and channels == 4 * planes
        self.around = nn.Identity() if fits else convolution(channels, 4 * planes, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.second(self.first(x).relu()).relu()
        return (self.third(inner) + self.around(x)).relu()


class ResNet50(nn.Module):
    """25.6 million parameters in 161 tensors; two images of 64 by 64 pixels.

    Source: He et al., Deep Residual Learning for Image Recognition, 2015.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)]
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        channels = 64
        for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for block in range(blocks):
                stride = 2 if block == 0 and planes > 64 else 1
                layers.append(Bottleneck(channels, planes, stride))
                channels = 4 * planes
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
        self.layers = nn.Sequential(*layers, *head)
        self.images = torch.randn(2, 3, 64, 64)
        self.labels = torch.randint(1000, (2,))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(images), self.labels)

    def batch(self) -> torch.Tensor:
        return self.images


SMALL_SHAPES = [(100, 100)] * 400  # 4 million parameters in many tensors


def make_model(name: str, rank: int) -> Any:
    torch.manual_seed(rank)
    if name == "wide":
        return Wide(list(resnet50_shapes()), rank + 1.0)
    if name == "small":
        return Wide(SMALL_SHAPES, rank + 1.0)
    return ResNet50() if name == "resnet50" else ConvNet()


class Worker:
    """Knows the commands; keeps the models, because making them is not what is measured."""

    def __init__(self, backend: Gloo | Hvd) -> None:
        self.backend = backend
        self.steps: dict[tuple[str, str], tuple[nn.Module, Callable[[], None]]] = {}

    def run(self, line: str) -> list[float]:
        name, *words = line.split()
        more_warm_up = self.backend.renew()
        if name == "step":
            model, mode = words[0], words[1]
            return self.time_steps(model, mode, int(words[2]) + more_warm_up, int(words[3]))
        size_bytes, tensors, warm, timed = map(int, words)
        return [self.time_operations(name, size_bytes, tensors, warm + more_warm_up, timed)]

    def time_operations(
        self, name: str, size_bytes: int, tensors: int, warm: int, timed: int
    ) -> float:
        memory = torch.zeros(size_bytes // FLOAT_BYTES * tensors)
        self.verify(memory)
        if name == "allreduce":
            return average(lambda: self.backend.allreduce(memory), warm, timed)
        if name == "fresh":
            return self.time_fresh(memory, warm, timed)
        parts = list(memory.chunk(tensors))
        if name == "grouped":
            return average(lambda: self.backend.allreduce_group(parts), warm, timed)
        if name == "packed":
            return average(lambda: self.backend.allreduce(memory), warm, timed)
        return average(lambda: self.backend.allreduce_many(parts), warm, timed)

    def time_fresh(self, memory: torch.Tensor, warm: int, timed: int) -> float:
        """As in training: each time the rank has just written what is reduced."""
        total = 0.0
        for iteration in range(warm + timed):
            memory.fill_(iteration)
            self.backend.barrier()
            start = time.perf_counter()
            self.backend.allreduce(memory)
            total += time.perf_counter() - start if iteration >= warm else 0.0
        return total / timed

    def verify(self, memory: torch.Tensor) -> None:
        """One allreduce whose result is known; leaves zeros, which stay zeros."""
        memory.fill_(self.backend.rank + 1)
        self.backend.allreduce(memory)
        expected = self.backend.size * (self.backend.size + 1) // 2
        if not bool((memory == expected).all()):
            raise AssertionError(f"the sum is not {expected} everywhere")
        memory.zero_()

    def time_steps(self, model_name: str, mode: str, warm: int, timed: int) -> list[float]:
        """Seconds per step, and a sum over the parameters, which must agree between ranks."""
        if (model_name, mode) not in self.steps:
            model = make_model(model_name, self.backend.rank)
            self.steps[model_name, mode] = (model, self.make_step(model, mode))
        model, step = self.steps[model_name, mode]
        seconds = average(step, warm, timed)
        return [seconds, sum(float(p.detach().double().sum()) for p in model.parameters())]

    def make_step(self, model: Any, mode: str) -> Callable[[], None]:
        if mode == "alone":
            parallel, optimizer = model, sgd(model)
        else:
            parallel, optimizer = self.backend.distribute(model)

        def step() -> None:
            optimizer.zero_grad()
            parallel(model.batch()).backward()
            optimizer.step()

        return step


def average(work: Callable[[], None], warm: int, timed: int) -> float:
    for _ in range(warm):
        work()
    start = time.perf_counter()
    for _ in range(timed):
        work()
    return (time.perf_counter() - start) / timed


def main() -> None:
    backend = Gloo() if sys.argv[1] == "gloo" else Hvd()
    torch.set_num_threads(1)
    worker = Worker(backend)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["HVL_BENCH_SOCKET"])
        hello = f"hello {os.environ['HVL_BENCH_TEAM']} {backend.rank} {os.getpid()}\n"
        connection.sendall(hello.encode("ascii"))
        with connection.makefile("r", encoding="ascii", newline="\n") as lines:
            for line in lines:
                numbers = worker.run(line)
                answer = " ".join(f"{number:.9g}" for number in numbers)
                connection.sendall(f"ok {answer}\n".encode("ascii"))
    backend.close()


if __name__ == "__main__":
    main()
