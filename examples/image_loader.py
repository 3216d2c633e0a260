#!/usr/bin/env python3
"""A script of the image kind: each sample is unpacked and augmented on the CPU, by as many workers as there are CPUs.

Size it with: bft size cpu --data image-data -- python examples/image_loader.py --data image-data
(or --regex 'samples (?P<samples>\\d+)', for a script that only prints what it has done)
"""

import argparse
import os
import zlib
from pathlib import Path

import torch
from torch.nn import functional

from bftd import elastic

SIDE = 256  # pixels of a picture as it is stored


class Pictures(torch.utils.data.Dataset):
    """Compressed pictures, one a file; reading one is work for a CPU."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.z"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = bytearray(zlib.decompress(self.files[index].read_bytes()))
        picture = torch.frombuffer(pixels, dtype=torch.uint8).view(3, SIDE, SIDE).float() / 255
        top, left = torch.randint(SIDE // 4, (2,)).tolist()
        picture = picture[None, :, top : top + SIDE * 3 // 4, left : left + SIDE * 3 // 4]
        picture = functional.interpolate(picture, size=(224, 224), mode="bilinear", antialias=True)[0]
        if torch.rand(()) < 0.5:
            picture = picture.flip(2)
        return (picture - 0.45) / 0.225, index % 10


def write_pictures(folder: Path, count: int = 128) -> None:
    """Smooth pictures with some noise, which compress about as photographs do."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    for number in range(count):
        coarse = torch.rand(1, 3, 8, 8, generator=generator)
        smooth = functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic")[0].clamp(0, 1)
        noisy = smooth * 240 + torch.rand(3, SIDE, SIDE, generator=generator) * 12
        (folder / f"{number:05}.z").write_bytes(zlib.compress(bytes(noisy.to(torch.uint8).flatten().tolist())))


def main() -> None:
    """Train until the steps are done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("image-data"), help="made where it is not there")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=16)
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        write_pictures(arguments.data)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # without a GPU, one thread stands for it; the CPUs are the workers'
    pictures = Pictures(arguments.data)
    cpus = len(os.sched_getaffinity(0))  # what Slurm or the profile leaves to this process, not what the node has
    draws = torch.utils.data.RandomSampler(pictures, True, num_samples=arguments.steps * arguments.batch_size)
    batches = torch.utils.data.DataLoader(pictures, arguments.batch_size, sampler=draws, num_workers=cpus)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 8, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 28 * 28, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = 0
    for step, (images, labels) in enumerate(batches, 1):
        loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(images)
        elastic.step(samples=len(images))
        print(f"step {step}, samples {samples}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
