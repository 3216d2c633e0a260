"""Steps that are written otherwise than most: copies, ties, frozen parts, experts and layers by chance, odd data."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from training import DEVICE, Step, step_of, tokens

_WIDTH, _LENGTH, _WORDS = 256, 64, 4096


def _squared(net: nn.Module, inputs: Tensor) -> Tensor:
    return net(inputs).square().mean()


def _texts(batch: int) -> Tensor:
    return torch.randn(batch, _LENGTH, _WIDTH, device=DEVICE)


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))


def transformer(batch_size: int) -> Step:
    """torch's own nn.Transformer, whose layers are deep copies."""
    model = nn.Transformer(_WIDTH, 8, 3, 3, 1024, batch_first=True).to(DEVICE)
    samples = (_texts(batch_size), _texts(batch_size))
    return step_of(model, samples, lambda net, read, written: net(read, written).square().mean())


def average(batch_size: int) -> Step:
    """An average of the weights in a deep copy, moved on after each step."""
    model = nn.Sequential(*(_mlp() for _ in range(4))).to(DEVICE)
    kept = copy.deepcopy(model).requires_grad_(False)
    train = step_of(model, (_texts(batch_size),), _squared)

    def step() -> None:
        train()
        with torch.no_grad():
            for mean, weight in zip(kept.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.01)

    return step


class _Lora(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """The frozen layer and what is learned beside it."""
        out: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return out


def lora(batch_size: int) -> Step:
    """Frozen weights with learned matrices of low rank beside them, in bfloat16."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in _mlp())).to(DEVICE)
    for at, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[at] = _Lora(layer)
    return step_of(model.to(DEVICE), (_texts(batch_size),), _squared, precision="bf16")


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.body = nn.Sequential(*(_mlp() for _ in range(2)))
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Words by their chances."""
        out: Tensor = self.head(self.body(self.words(words)))
        return out


def _next_word(net: nn.Module, words: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(net(words).flatten(0, 1), wanted.flatten())


def tied(batch_size: int) -> Step:
    """An output matrix that is the embedding, Adafactor."""
    samples = (tokens(batch_size, _LENGTH, _WORDS), tokens(batch_size, _LENGTH, _WORDS))
    return step_of(_Tied().to(DEVICE), samples, _next_word, optimizer="adafactor")


class _Depth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_mlp() for _ in range(6))
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 6)]

    def forward(self, inputs: Tensor) -> Tensor:
        """Each layer is left out for some samples, by chance."""
        for layer, rate in zip(self.layers, self.rates, strict=True):
            kept = torch.rand(len(inputs), 1, 1, device=inputs.device) >= rate
            inputs = inputs + (layer(inputs) * kept / (1 - rate) if rate > 0 else layer(inputs))
        return inputs


def stochastic_depth(batch_size: int) -> Step:
    """Layers that samples skip by chance, gradients clipped."""
    return step_of(_Depth().to(DEVICE), (_texts(batch_size),), _squared, clip=1.0)


class _Experts(nn.Module):
    def __init__(self, count: int = 8, each: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, count)
        self.experts = nn.ModuleList(_mlp() for _ in range(count))
        self.each = each

    def forward(self, inputs: Tensor) -> Tensor:
        """Each word goes through the experts that its gate chooses."""
        words = inputs.flatten(0, 1)
        weights, chosen = self.gate(words).softmax(-1).topk(self.each, -1)
        out = torch.zeros_like(words)
        for at, expert in enumerate(self.experts):
            rows, columns = torch.where(chosen == at)
            out.index_add_(0, rows, expert(words[rows]) * weights[rows, columns, None])
        return out.view_as(inputs)


def experts(batch_size: int) -> Step:
    """A mixture of experts by hand: where its gate says, and added up by index."""
    return step_of(_Experts().to(DEVICE), (_texts(batch_size),), _squared)


class _Lstm(nn.Module):
    def __init__(self, lengths: Tensor | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.layers = nn.LSTM(_WIDTH, _WIDTH, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(_WIDTH, _WORDS)
        self.lengths = lengths

    def forward(self, words: Tensor) -> Tensor:
        """Words by their chances."""
        read: Any = self.words(words)
        if self.lengths is None:
            return self.head(self.layers(read)[0])
        read = pack_padded_sequence(read, self.lengths, batch_first=True)
        out: Tensor = self.head(pad_packed_sequence(self.layers(read)[0], batch_first=True)[0])
        return out


def lstm(batch_size: int) -> Step:
    """Two layers of LSTM over whole texts, SGD with momentum."""
    samples = (tokens(batch_size, _LENGTH, _WORDS), tokens(batch_size, _LENGTH, _WORDS))
    return step_of(_Lstm().to(DEVICE), samples, _next_word, optimizer="momentum")


def packed(batch_size: int) -> Step:
    """The same over texts of several lengths, packed."""
    lengths = torch.tensor([_LENGTH - 5 * at for at in range(batch_size)])
    samples = (tokens(batch_size, _LENGTH, _WORDS), tokens(batch_size, _LENGTH, _WORDS))
    return step_of(_Lstm(lengths).to(DEVICE), samples, _next_word)


def sparse(batch_size: int) -> Step:
    """An embedding with sparse gradients."""
    words, head = nn.Embedding(_WORDS, _WIDTH, sparse=True).to(DEVICE), nn.Linear(_WIDTH, 10).to(DEVICE)
    optimizers = torch.optim.SparseAdam(words.parameters()), torch.optim.AdamW(head.parameters())
    read, wanted = tokens(batch_size, _LENGTH, _WORDS), torch.randint(10, (batch_size,), device=DEVICE)

    def step() -> None:
        functional.cross_entropy(head(words(read).mean(1)), wanted).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


class _Graph(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * _WIDTH, _WIDTH) for _ in range(layers))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Nodes learn from the mean of those that point to them."""
        begins, ends = edges
        for layer in self.layers:
            told = torch.zeros_like(nodes).index_add(0, ends, nodes[begins])
            count = torch.zeros(len(nodes), device=nodes.device).scatter_add(0, ends, torch.ones_like(ends).float())
            nodes = functional.relu(layer(torch.cat([nodes, told / count.clamp(min=1)[:, None]], 1)))
        return nodes


def graph(batch_size: int) -> Step:
    """A network over a graph's edges, by index_add and scatter_add, plain SGD."""
    model = _Graph().to(DEVICE)
    nodes = torch.randn(256 * batch_size, _WIDTH, device=DEVICE)
    edges = torch.randint(256 * batch_size, (2, 1024 * batch_size), device=DEVICE)

    def loss(net: nn.Module, nodes: Tensor) -> Tensor:
        return net(nodes, edges).square().mean()

    return step_of(model, (nodes,), loss, optimizer="sgd")
