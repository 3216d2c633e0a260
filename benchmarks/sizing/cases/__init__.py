"""Training steps as users write them (`make_step(batch_size)`), and the table of those that are run on a CPU.

The files beside this one are run by themselves, with this folder as the one that their imports are found in; they know
nothing of bftd.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sizing.base.parallel import Parallel

FOLDER = Path(__file__).resolve().parent

_SMALL = "h=256,l=4,a=8,s=256,V=4096"
_WIDE = "h=512,l=4,a=8,s=128,V=8192"
_LLAMA = "h=256,l=4,a=8,kv=2,ffn=688,s=256,V=4096"


@dataclass(frozen=True)
class Case:
    """A step, the samples of one rank, and the sizes that a formula needs where the model is a language model."""

    step: str
    batch: int
    config: str = ""
    parallel: Parallel = field(default_factory=Parallel)

    @property
    def name(self) -> str:
        """What it is called in tables and on the command line."""
        file, _, function = self.step.partition(".py:")
        return f"{file}:{function}"

    @property
    def package(self) -> str:
        """The optional package whose models its file trains; "" for none."""
        return self.step.partition("_models.py:")[0] if "_models.py:" in self.step else ""

    @property
    def path(self) -> str:
        """The step as `bft size mem` takes it."""
        return str(FOLDER / self.step)


def _of(file: str, config: str, *cases: tuple[str, int]) -> tuple[Case, ...]:
    return tuple(Case(f"{file}.py:{function}", batch, config) for function, batch in cases)


_TWO_RANKS = (
    Case("gpt.py:ddp", 4, _WIDE, Parallel(dp=2)),
    Case("gpt.py:ddp_autocast_accumulation", 8, _WIDE, Parallel(dp=2)),
    Case("huggingface.py:gpt2_ddp", 2, _SMALL, Parallel(dp=2)),
    Case("gpt.py:tensor_parallel", 4, _WIDE, Parallel(tp=2)),
    Case("gpt.py:tensor_parallel_autocast", 8, _SMALL, Parallel(tp=2)),
    Case("gpt.py:sharded", 4, _WIDE, Parallel(fsdp=2)),
    Case("gpt.py:sharded_recompute", 4, _SMALL, Parallel(fsdp=2)),
    Case("llama.py:sharded", 4, "h=512,l=4,a=8,kv=2,ffn=1376,s=128,V=8192", Parallel(fsdp=2)),
    Case("huggingface.py:llama_sharded", 2, _LLAMA, Parallel(fsdp=2)),
)

CASES: tuple[Case, ...] = (
    *_of(
        "gpt",
        _SMALL,
        ("fp32", 4),
        ("autocast", 8),
        ("autocast_fp16", 1),
        ("pure_bf16", 4),
        ("dropout", 4),
        ("autocast_dropout", 4),
        ("formula_attention", 4),
        ("formula_attention_autocast_dropout", 4),
        ("recompute", 8),
        ("recompute_autocast_dropout", 8),
        ("accumulation", 16),
        ("accumulation_kept_gradients", 8),
    ),
    *_of(
        "gpt",
        _WIDE,
        ("wide", 2),
        ("sgd", 4),
        ("momentum", 4),
        ("adamw_loop", 2),
        ("adamw_fused", 2),
        ("adafactor", 2),
    ),
    *_of("gpt", "h=192,l=2,a=6,s=128,V=32000", ("untied", 4)),
    *_of("llama", _LLAMA, ("fp32", 4), ("autocast", 4), ("recompute_autocast", 8)),
    *_of("llama", "h=512,l=4,a=8,kv=2,ffn=1376,s=128,V=8192", ("pure_bf16", 8)),
    *_of("moe", "h=192,l=4,a=6,s=128,V=4096,experts=8,topk=2", ("fp32", 8), ("recompute", 8)),
    *_of("huggingface", _SMALL, ("gpt2", 4), ("gpt2_autocast_recompute", 4)),
    *_of("huggingface", _SMALL, ("bert", 4), ("bert_without_dropout", 4), ("bert_autocast", 4), ("bert_recompute", 8)),
    *_of("huggingface", "", ("vit", 8), ("vit_autocast", 8), ("vit_recompute_accumulation", 16)),
    *_of("huggingface", "", ("resnet", 16), ("resnet_autocast", 16)),
    *_of("huggingface", _LLAMA, ("llama", 4), ("llama_autocast", 4), ("llama_recompute", 8)),
    *_of(
        "huggingface",
        "h=192,l=3,a=6,kv=2,ffn=384,s=128,V=4096,experts=8,topk=2",
        ("mixtral", 8),
        ("mixtral_autocast", 4),
    ),
    *_of("huggingface", "", ("t5", 4), ("t5_autocast", 4)),
    *_TWO_RANKS,
)

GPU_CASES: tuple[Case, ...] = (
    *_of(
        "gpu",
        "",
        ("gpt_fp32", 4),
        ("gpt_autocast", 4),
        ("gpt_autocast", 16),
        ("gpt_autocast_dropout", 8),
        ("gpt_fp16", 8),
        ("gpt_pure_bf16", 8),
        ("gpt_formula", 4),
        ("gpt_formula_autocast_dropout", 4),
        ("gpt_recompute", 8),
        ("gpt_recompute_autocast_dropout", 16),
        ("gpt_accumulation", 16),
        ("gpt_momentum", 4),
        ("gpt_fused", 8),
        ("llama_fp32", 4),
        ("llama_autocast", 8),
        ("llama_recompute_autocast", 16),
        ("llama_pure_bf16", 8),
        ("moe_fp32", 8),
        ("moe_autocast", 16),
        ("moe_recompute", 16),
    ),
    *_of(
        "gpu_huggingface",
        "",
        ("bert", 16),
        ("bert_autocast", 32),
        ("vit", 32),
        ("vit_autocast", 128),
        ("resnet", 32),
        ("resnet_autocast", 128),
        ("gpt2_autocast", 8),
        ("llama_autocast", 8),
        ("mixtral_autocast", 8),
        ("t5", 8),
    ),
)

MODELS: tuple[Case, ...] = (
    *_of(
        "torchvision_models",
        "",
        ("resnet18_sgd", 8),
        ("resnet50_momentum", 4),
        ("resnext50_32x4d_bf16_momentum", 4),
        ("densenet121_momentum", 4),
        ("mobilenet_v3_large_momentum", 4),
        ("efficientnet_b0", 4),
        ("efficientnet_v2_s_bf16", 2),
        ("regnet_y_400mf_momentum", 4),
        ("shufflenet_v2_x1_0_sgd", 8),
        ("convnext_tiny", 2),
        ("swin_t_bf16", 2),
        ("vit_b_16_momentum", 2),
        ("deeplabv3_resnet50_momentum", 2),
        ("lraspp_mobilenet_v3_large", 2),
        ("r3d_18_momentum", 2),
        ("retinanet_resnet50_fpn_momentum", 2),
    ),
    *_of(
        "timm_models",
        "",
        ("vit_small_patch16_224", 4),
        ("deit3_small_patch16_224_bf16", 4),
        ("convnextv2_atto", 4),
        ("mixer_s16_224_bf16", 4),
        ("eva02_tiny_patch14_224", 4),
        ("resnetv2_50_momentum", 2),
        ("maxvit_nano_rw_256", 2),
        ("mobilevit_s_momentum", 4),
        ("levit_128_adafactor", 8),
        ("poolformer_s12_bf16", 4),
        ("xcit_tiny_12_p16_224", 4),
        ("tf_efficientnetv2_b0_bf16_momentum", 4),
    ),
    *_of(
        "transformers_models",
        "",
        ("GPT2LMHeadModel", 4),
        ("BertForMaskedLM_bf16", 4),
        ("RobertaForMaskedLM_adafactor", 4),
        ("T5ForConditionalGeneration_adafactor", 4),
        ("BartForConditionalGeneration_bf16", 4),
        ("LlamaForCausalLM_bf16_adafactor", 4),
        ("MistralForCausalLM", 4),
        ("Qwen2ForCausalLM_bf16", 4),
        ("Qwen3MoeForCausalLM", 4),
        ("MixtralForCausalLM_bf16", 4),
        ("GemmaForCausalLM_sgd", 4),
        ("MambaForCausalLM", 4),
        ("WhisperForConditionalGeneration_bf16", 4),
        ("Wav2Vec2ForCTC", 4),
        ("CLIPModel", 4),
        ("SamModel", 2),
        ("ViTMAEForPreTraining_bf16", 8),
        ("DetrForObjectDetection", 2),
        ("SegformerForSemanticSegmentation", 4),
    ),
    *_of("diffusers_models", "", ("UNet2DConditionModel", 2), ("DiTTransformer2DModel_bf16", 4), ("AutoencoderKL", 2)),
    *_of(
        "odd",
        "",
        ("transformer", 8),
        ("average", 8),
        ("lora", 8),
        ("tied", 8),
        ("stochastic_depth", 8),
        ("experts", 8),
        ("lstm", 8),
        ("packed", 8),
        ("sparse", 8),
        ("graph", 8),
    ),
)
"""Real models: of packages, named with how they are trained, and ten that are written oddly."""

QUICK = ("gpt:fp32", "gpt:autocast_dropout", "gpt:recompute", "huggingface:llama", "gpt:tensor_parallel", "gpt:sharded")


def case_of(name: str) -> Case:
    """The case of that name; raises KeyError."""
    return {case.name: case for case in (*CASES, *MODELS)}[name]
