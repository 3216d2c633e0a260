#!/usr/bin/env python3
"""A script of the language kind: a batch is a few slices of a file of tokens, so more CPUs do not make it faster.

Size it with: bft size cpu --data tokens.bin -- python examples/language_loader.py --data tokens.bin
(or --regex 'samples (?P<samples>\\d+)', for a script that only prints what it has done)
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional

from bftd import elastic

VOCABULARY, LENGTH, WIDTH = 1000, 48, 128


def write_tokens(file: Path, count: int = 1_000_000) -> None:
    """Random tokens, two bytes each."""
    tokens = torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(1), dtype=torch.int16)
    tokens.numpy().tofile(file)


def main() -> None:
    """Train until the steps are done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("tokens.bin"), help="made where it is not there")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=8)
    arguments = parser.parse_args()
    if not arguments.data.exists():
        write_tokens(arguments.data)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # without a GPU, one thread stands for it
    # memory-mapped: what is not looked at is not read
    size = arguments.data.stat().st_size // 2
    tokens = torch.from_file(str(arguments.data), shared=False, size=size, dtype=torch.int16)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(WIDTH, VOCABULARY)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = 0
    for step in range(1, arguments.steps + 1):
        starts = torch.randint(len(tokens) - LENGTH, (arguments.batch_size,)).tolist()
        batch = torch.stack([tokens[at : at + LENGTH + 1] for at in starts]).long().to(device)
        output = model(batch[:, :-1])
        loss = functional.cross_entropy(output.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(batch)
        elastic.step(samples=len(batch))
        print(f"step {step}, samples {samples}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
