"""Trains a small transformer to write text, one character at a time, on the ranks of hvlrun.

The text is the language reference that Python carries for its help() (`pydoc_data.topics`). A
tenth of it is held out; at the end the loss on that and a sample of what the model writes are
printed. Without hvlrun the script is a world of one.
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
from progress import Progress
from torch import nn

import horovodlite.torch as hvd

EXAMPLES = """examples:
  hvlrun -np 2 python docs/examples/char_transformer.py
  hvlrun -np 2 python docs/examples/char_transformer.py --steps 2000 --width 192 --layers 4
  hvlrun -np 2 python docs/examples/char_transformer.py --prompt "The with statement"
  python docs/examples/char_transformer.py --steps 100
"""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out = Path(__file__).parent / "out"
    parser.add_argument("--steps", type=int, default=500, help="steps of the optimizer (500)")
    parser.add_argument("--batch-size", type=int, default=16, help="texts per step and rank (16)")
    parser.add_argument("--context", type=int, default=96, help="characters per text (96)")
    parser.add_argument("--width", type=int, default=128, help="of the model (128)")
    parser.add_argument("--heads", type=int, default=4, help="of attention (4)")
    parser.add_argument("--layers", type=int, default=2, help="of attention (2)")
    parser.add_argument("--lr", type=float, default=4e-3, help="learning rate (0.004)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and texts (1)")
    parser.add_argument("--prompt", default="The function ", help="what the sample begins with")
    parser.add_argument("--sample", type=int, default=300, help="characters to write (300)")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"plot ({out})")
    return parser.parse_args()


class Text:
    """The characters as numbers, in a part for training and a part held out."""

    def __init__(self) -> None:
        pages = [topics[name] for name in sorted(topics)]
        self.alphabet = sorted(set("".join(pages)))
        self._numbers = {character: number for number, character in enumerate(self.alphabet)}
        held_out = pages[::10]
        training = [page for index, page in enumerate(pages) if index % 10 != 0]
        self.training = self.encode("\n\n".join(training))
        self.held_out = self.encode("\n\n".join(held_out))

    def encode(self, text: str) -> torch.Tensor:
        """Characters that the text does not use are left out."""
        numbers = [self._numbers[c] for c in text if c in self._numbers]
        return torch.tensor(numbers, dtype=torch.long)

    def decode(self, numbers: torch.Tensor) -> str:
        return "".join(self.alphabet[number] for number in numbers.tolist())


def draw(
    data: torch.Tensor, count: int, length: int, random: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` pieces from random places, and the same moved by one: what comes next."""
    starts = torch.randint(len(data) - length, (count, 1), generator=random)
    places = starts + torch.arange(length)
    return data[places], data[places + 1]


class Block(nn.Module):
    """Attention to what came before, then two linear layers; both added to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x))
        query, key, value = parts.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class Transformer(nn.Module):
    """Predicts each next character from those before it, at most `context` of them."""

    def __init__(self, characters: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.context: int = options.context
        self.character = nn.Embedding(characters, options.width)
        self.place = nn.Embedding(options.context, options.width)
        blocks = [Block(options.width, options.heads) for _ in range(options.layers)]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(options.width))
        self.scores = nn.Linear(options.width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.character(text) + self.place(torch.arange(text.shape[1]))
        return self.scores(self.blocks(x))

    def loss(self, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self(text).flatten(0, 1), following.flatten())

    @torch.no_grad()
    def write(self, start: torch.Tensor, count: int) -> torch.Tensor:
        """Continues the text by `count` characters, each drawn by its probability."""
        text = start
        for _ in range(count):
            scores = self(text[None, -self.context :])[0, -1]
            following = torch.multinomial(torch.softmax(scores / 0.7, 0), 1)
            text = torch.cat([text, following])
        return text


def train(model: Transformer, text: Text, options: argparse.Namespace) -> Progress:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), op=hvd.Average
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, total_steps=options.steps, pct_start=0.1
    )
    # Every rank draws texts of its own.
    random = torch.Generator().manual_seed(options.seed * hvd.size() + hvd.rank())
    per_step = options.batch_size * options.context * hvd.size()
    with Progress(options.steps, per_step, "characters", show=hvd.rank() == 0) as progress:
        for _ in range(options.steps):
            batch = draw(text.training, options.batch_size, options.context, random)
            optimizer.zero_grad()
            loss = model.loss(*batch)
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.step(loss.item())
    return progress


@torch.no_grad()
def held_out_loss(model: Transformer, text: Text, options: argparse.Namespace) -> float:
    """The mean over all ranks, each with texts of its own."""
    random = torch.Generator().manual_seed(hvd.rank())
    loss = model.loss(*draw(text.held_out, 128 // hvd.size(), options.context, random))
    return float(hvd.allreduce(loss, op=hvd.Average, name="held_out_loss"))


def main() -> None:
    options = parse()
    hvd.init()
    # The ranks of a host share its processors.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(options.seed + hvd.rank())  # the weights are those of rank 0
    text = Text()
    model = Transformer(len(text.alphabet), options)
    progress = train(model, text, options)
    loss = held_out_loss(model, text, options)
    if hvd.rank() == 0:
        ranks = f"{hvd.size()} rank" + ("s" if hvd.size() > 1 else "")
        print(f"held-out loss after training on {ranks}: {loss / math.log(2):.2f} bits a character")
        start = text.encode(options.prompt) if options.prompt else text.held_out[:1]
        print(f"\n{text.decode(model.write(start, options.sample))}\n")
        progress.save_plot(options.out / "char_transformer.png", f"char_transformer, {ranks}")


if __name__ == "__main__":
    main()
