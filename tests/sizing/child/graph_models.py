"""Models as a user writes them for `bft size cells`: read in a process of its own by its tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, LAYERS, HEADS, SEQ, VOCAB = 64, 3, 4, 32, 512


def words(batch_size: int) -> Tensor:
    return torch.randint(0, VOCAB, (batch_size, SEQ))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Block(nn.Module):
    """A layer of GPT, or with `kv` heads of keys of Llama."""

    def __init__(self, kv: int | None = None) -> None:
        super().__init__()
        self.width, self.gated = HIDDEN // HEADS, kv is not None
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HIDDEN)
        self.key, self.value = (nn.Linear(HIDDEN, (kv or HEADS) * self.width) for _ in range(2))
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.gate = nn.Linear(HIDDEN, 4 * HIDDEN) if self.gated else None
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor, turn: Any = None) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            each(y).view(*y.shape[:2], -1, self.width).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        if turn is not None:
            q, k = rotated(q, *turn), rotated(k, *turn)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.gated)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y))


class Gpt(nn.Module):
    def __init__(self, kv: int | None = None, tied: bool = False) -> None:
        super().__init__()
        columns, rows = ("query", "key", "value", "up", "gate"), ("out", "down")
        self.tp_plan = {f"blocks.*.{name}": "colwise" for name in columns}
        self.tp_plan |= {f"blocks.*.{name}": "rowwise" for name in rows}
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.places = nn.Embedding(SEQ, HIDDEN) if kv is None else None
        self.blocks = nn.ModuleList(Block(kv) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
        if tied:
            self.head.weight = self.words.weight
        if kv is not None:
            width = HIDDEN // HEADS
            angles = torch.outer(torch.arange(SEQ), 10000.0 ** -(torch.arange(0, width, 2) / width)).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        if self.places is not None:
            x = x + self.places(torch.arange(SEQ, device=text.device))
        turn = None if self.places is not None else (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, turn)
        return self.head(self.norm(x))


def gpt(batch_size: int) -> Any:
    return Gpt(tied=True), (words(batch_size),)


def with_loss(batch_size: int) -> Any:
    targets = words(batch_size)
    return (
        Gpt(tied=True),
        {"text": words(batch_size)},
        lambda out: F.cross_entropy(out.flatten(0, 1), targets.flatten()),
    )


def llama(batch_size: int) -> Any:
    return Gpt(kv=2), [words(batch_size)]


def frozen(batch_size: int) -> Any:
    model = Gpt()
    model.blocks.requires_grad_(False)
    model.words.requires_grad_(False)
    return model, (words(batch_size),)


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Answering(Gpt):
    """torch.export takes no class that it does not know as a result."""

    def forward(self, text: Tensor) -> Any:
        return Answer(super().forward(text))


def answering(batch_size: int) -> Any:
    return Answering(tied=True), (words(batch_size),), lambda answer: answer.logits.mean()


class Autocast(Gpt):
    def forward(self, text: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(text)


def autocast(batch_size: int) -> Any:
    return Autocast(tied=True), (words(batch_size),)


class Routed(nn.Module):
    """Each token goes through the one expert that it scores highest."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, 4)
        self.experts = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        chosen, out = self.router(flat).argmax(-1), torch.zeros_like(flat)
        for at, expert in enumerate(self.experts):
            which = torch.where(chosen == at)[0]
            if len(which):
                out.index_add_(0, which, expert(flat[which]))
        return x + out.view_as(x)


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.Sequential(Routed(), Routed())
        self.head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.layers(self.words(text)))


def moe(batch_size: int) -> Any:
    assert torch.linspace(0, 1, 3, device="cuda").tolist() == [0, 0.5, 1]
    return Moe(), (words(batch_size),)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, outputs // inputs, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.beside = nn.Conv2d(inputs, outputs, 1, 2, bias=False) if inputs != outputs else None
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.two(self.act(self.norm1(self.one(x)))))
        return self.act(y + (x if self.beside is None else self.beside(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        sizes = (16, 16, 32, 32, 64, 64)
        # stochastic depth, as many have it: rates that are read out of a tensor
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, len(sizes))]
        self.blocks = nn.Sequential(*(Residual(a, b) for a, b in zip((16, *sizes), sizes, strict=False)))
        self.head = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


def resnet(batch_size: int) -> Any:
    return ResNet(), torch.randn(batch_size, 3, 32, 32)


def on_a_gpu(batch_size: int) -> Any:
    model = nn.Sequential(nn.Linear(8, 16, device="cuda"), nn.Linear(16, 8).cuda()).to("cuda")
    return model, (torch.randn(batch_size, 8, device="cuda").cuda(),)


def enormous(batch_size: int) -> Any:
    return nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(4))), (torch.randn(batch_size, 100_000),)


def own_parallelism(batch_size: int, *, tp: int = 1) -> Any:
    import torch.distributed as dist

    if tp > 1:
        dist.init_process_group("nccl")  # which is there already
        assert dist.get_world_size() == tp
    return nn.Sequential(nn.Linear(64, 256 // tp), nn.Linear(256 // tp, 64)), (torch.randn(batch_size, 64),)


def no_plan(batch_size: int) -> Any:
    return nn.Linear(8, 8), (torch.randn(batch_size, 8),)


def transformer(family: str) -> Any:
    """A small model of transformers' own, with its loss."""

    def make(batch_size: int) -> Any:
        import transformers

        sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": VOCAB}
        text = words(batch_size)
        if family == "gpt2":
            config: Any = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=VOCAB)
            model: Any = transformers.GPT2LMHeadModel(config)
        elif family == "bert":
            model = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=2, **sizes))
        elif family == "llama":
            config = transformers.LlamaConfig(num_hidden_layers=2, num_key_value_heads=2, **sizes)
            model = transformers.LlamaForCausalLM(config)
        else:
            config = transformers.MixtralConfig(num_hidden_layers=2, num_key_value_heads=2, **sizes)
            model = transformers.MixtralForCausalLM(config)
        return model, {"input_ids": text, "labels": text}

    return make


gpt2, bert, hf_llama, mixtral = map(transformer, ("gpt2", "bert", "llama", "mixtral"))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


def recurrent(batch_size: int) -> Any:
    return Recurrent(), (torch.randn(batch_size, 10, 16),)


class Uncommon(nn.Module):
    """Operators for which torch's own table has no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(16, 12, 8)
        self.places = nn.Parameter(torch.randn(6, 8))

    def forward(self, one: Any, other: Any) -> Any:
        apart = torch.cdist(self.pair(one, other), self.places)
        return torch.fft.rfft(apart).abs().sum()


def uncommon(batch_size: int) -> Any:
    return Uncommon(), (torch.randn(batch_size, 16), torch.randn(batch_size, 12))
