"""The memory formula against public measurements, against a search's verdicts, and against the tracer.

    python -m benchmarks.sizing.formula [--traced] [--json]

1. Peaks that Alpa's authors measured on V100-32GB (GPT, fp16 with masters, full recomputation), MARP as printed beside.
2. Out of memory, by a search: every plan in Alpa's search logs that puts the whole model on one mesh with the batch
   spread over dp (`forced` is "batch"), once each; what it is held to is the log's own `fits` on 28.031 GiB. Alpa cuts
   the optimizer's state over dp, so such plans are `zero=1`. Parts of models (pipeline stages) and plans whose sharding
   the search chose freely are outside of the formula, and left out.
3. Out of memory, by measurement: each run of 1 on cards of other sizes, where it is out of memory if its measured peak
   is more than the card has. Harder, since a card may lie just above or below a peak.
4. With --traced (torch and transformers, minutes): training steps in plain torch, and of models as the transformers
   package has them, traced as for a GPU.

A run is called out of memory where the guarded peak (`high`) is more than the card has. Nothing is fitted to any of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark, Figure
from sizing.memory import formula
from sizing.model import config, huggingface

DATA = Path(__file__).parents[3] / "shared" / "data" / "sizing"
GIB = 2**30
MEAN_BOUND, WORST_BOUND = 0.90, 0.75
RECALL_BOUND, FALSE_BOUND = 1.0, 0.10
CARDS_GIB = (8, 11, 12, 16, 24, 32, 40, 48, 80)
SEARCHED = {8: 2560, 16: 4096}
"""The hidden size of the model that was searched on so many GPUs: GPT-2.6B and GPT-6.7B, 32 layers and heads."""
ALPA = "precision=fp16,optimizer=adam,recompute=full,attention=math"
_SMALL = "gpt:h=768,l=12,a=12,s=1024,V=50257"
_LLAMA = "llama:h=2048,l=16,a=32,kv=8,ffn=8192,s=2048,V=32000"
TRACED = (
    "gpt:h=1024,l=24,a=16,s=1024,V=50257,b=4,precision=bf16",
    "gpt:h=1024,l=24,a=16,s=1024,V=50257,b=1",
    f"{_SMALL},b=8",
    f"{_SMALL},b=8,dropout=0.1",
    f"{_SMALL},b=8,precision=bf16,recompute=full",
    f"{_SMALL},b=8,precision=bf16-pure",
    f"{_SMALL},b=4,attention=math",
    f"{_SMALL},b=4,attention=math,precision=bf16,dropout=0.1",
    f"{_SMALL},b=4,attention=math,precision=bf16-pure,recompute=full",
    f"{_SMALL},b=2,precision=bf16,accumulation=4",
    f"{_SMALL},b=1,optimizer=momentum",
    f"{_LLAMA},b=1",
    f"{_LLAMA},b=2,precision=bf16",
    f"{_LLAMA},b=1,precision=bf16,attention=math",
    f"{_LLAMA},b=4,precision=bf16-pure,recompute=full",
)
_WIDE = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
    "vocab_size": 32000,
}
PACKAGE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("gpt2", {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}, "s=1024,b=4"),
    ("gpt2", {}, "s=1024,b=4,precision=bf16"),
    ("llama", _WIDE, "s=1024,b=4"),
    ("llama", _WIDE, "s=1024,b=4,precision=bf16"),
    ("llama", _WIDE, "s=1024,b=4,precision=bf16-pure"),
    ("llama", _WIDE, "s=1024,b=4,precision=bf16,attention=math"),
    ("llama", _WIDE, "s=1024,b=16,precision=bf16-pure,recompute=full"),
    ("mixtral", {**_WIDE, "num_hidden_layers": 4, "num_local_experts": 4}, "s=1024,b=4"),
    ("bert", {}, "s=512,b=8"),
    ("bert", {}, "s=512,b=8,precision=bf16"),
    ("bert", {}, "s=512,b=8,precision=bf16-pure"),
)
"""A model_type, what its config.json has in place of the package's own values, and the options of `--config`."""
STEP = Path(__file__).with_name("formula_steps.py")
PACKAGE_STEP = Path(__file__).with_name("formula_package.py")


def accuracy(estimate: float, real: float) -> float:
    """1 - |e - r| / r."""
    return 1 - abs(estimate - real) / real


def text_of(row: Mapping[str, str]) -> str:
    """A measured run as `--config` has it."""
    batch = int(row["global_batch"]) // int(row["micro_batches"]) // int(row["data_parallel"])
    return (
        f"gpt:h={row['hidden']},l={row['layers']},a={row['heads']},s={row['seq']},V={row['vocab']},b={batch},"
        f"tp={row['tensor_parallel']},dp={row['data_parallel']},{ALPA}"
    )


def measured(data: Path = DATA) -> list[dict[str, Any]]:
    """The published peaks, ours and MARP's."""
    found = []
    with (data / "alpa-gpt-v100.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            text, real = text_of(row), float(row["peak_gib"]) * GIB
            peak = formula.peak_of(config.parse(text))
            assert peak.marp_bytes is not None
            found.append(
                {
                    "config": text,
                    "card_gib": int(row["gpu_gb"]),
                    "real_bytes": round(real),
                    "ours_bytes": int(peak.peak.value),
                    "high_bytes": int(peak.peak.high),
                    "marp_bytes": peak.marp_bytes,
                    "ours": accuracy(peak.peak.value, real),
                    "marp": accuracy(peak.marp_bytes, real),
                }
            )
    return found


def searched(data: Path = DATA) -> list[dict[str, Any]]:
    """Whole-model plans of the search logs, once each: what we call out of memory and what the log does."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((data / "alpa-search").glob("grid_*.csv")):
        gpus, micro = map(int, re.findall(r"grid_(\d+)-\d+-microbatches(\d+)", path.name)[0])
        for row in _whole(path):
            dp, tp = int(row["dp"]), int(row["tp"])
            text = (
                f"gpt:h={SEARCHED[gpus]},l=32,a=32,s=1024,V=51200,b={1024 // micro // dp},tp={tp},dp={dp},zero=1,{ALPA}"
            )
            high = formula.peak_of(config.parse(text)).peak.high
            available = float(row["avail_gb"]) * GIB
            said = {"config": text, "high_bytes": int(high), "ours": high > available, "real": row["fits"] == "0"}
            assert found.setdefault(text, said) == said, f"{path}: two verdicts on {text}"
    return list(found.values())


def _whole(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            whole = row["first_layer"] == "0" and int(row["last_layer"]) + 1 == int(row["layers"])
            if whole and row["forced"] == "batch":
                yield row


def on_cards(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The measured runs on cards of other sizes."""
    return [
        {
            "config": f"{row['config']} on {card} GiB",
            "high_bytes": row["high_bytes"],
            "ours": row["high_bytes"] > card * GIB,
            "real": row["real_bytes"] > card * GIB,
        }
        for row in rows
        for card in CARDS_GIB
    ]


def verdicts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of those out of memory are called so, and how many of the others are; the wrong ones by name."""
    out = [row for row in rows if row["real"]]
    well = [row for row in rows if not row["real"]]
    return {
        "plans": len(rows),
        "out_of_memory": len(out),
        "recall": sum(row["ours"] for row in out) / len(out) if out else 1.0,
        "false": sum(row["ours"] for row in well) / len(well) if well else 0.0,
        "wrong": [row["config"] for row in rows if row["ours"] != row["real"]],
    }


def traced(texts: tuple[str, ...] = TRACED, python: str = sys.executable) -> list[dict[str, Any]]:
    """The formula beside a trace of the same model's step, for a GPU."""
    found = []
    for text in texts:
        os.environ["SIZING_CONFIG"] = text
        found.append(_beside(text, config.parse(text), STEP, python))
    return found


def packaged(python: str = sys.executable) -> list[dict[str, Any]]:
    """The same of models as the transformers package has them, read from what their config.json says."""
    import transformers

    found = []
    for kind, fields, options in PACKAGE:
        whole = transformers.AutoConfig.for_model(kind, **fields).to_json_string(use_diff=False)
        model = config.with_options(huggingface.read(json.loads(whole), name=kind), options)
        how = {"precision": model.precision, "recompute": model.recompute, "attention": model.attention}
        os.environ["SIZING_PACKAGE_CASE"] = json.dumps({"kind": kind, "fields": fields, "seq": model.seq, **how})
        found.append(_beside(f"{kind}/config.json:{options}", model, PACKAGE_STEP, python))
    return found


def _beside(text: str, model: config.ModelConfig, step: Path, python: str) -> dict[str, Any]:
    from sizing.child import tracing

    trace = tracing.trace(f"{step}:make_step", model.batch, model.parallel, target="cuda", python=python)
    moments = {name: sum(parts.values()) for name, parts in formula.moments_of(model).items()}
    peak = max(moments, key=lambda name: moments[name])
    return {
        "config": text,
        "ours_bytes": moments[peak],
        "moment": peak,
        "traced_bytes": trace.peak_bytes,
        "ours": accuracy(moments[peak], trace.peak_bytes),
        "parameters": config.parameters(model) / trace.parameters,
    }


def mean_and_worst(rows: list[dict[str, Any]], key: str) -> tuple[float, float]:
    """Of an accuracy."""
    values = [row[key] for row in rows]
    return sum(values) / len(values), min(values)


def overall(result: Mapping[str, Any]) -> str:
    """The formula beside MARP and its bounds, in Markdown, of what `--json` prints."""
    rows = []
    for name, bound in (("mean", MEAN_BOUND), ("worst", WORST_BOUND)):
        ours = result[f"ours_{name}"]
        text = markdown.bounded(markdown.percent(ours), ours >= bound)
        marp = markdown.percent(result[f"marp_{name}"])
        rows.append(
            (
                f"peaks of {len(result['measured'])} measured runs, {name} accuracy",
                text,
                marp,
                markdown.percent(bound, 0),
            )
        )
    for key, what in (("searched", "plans of the search logs"), ("on_cards", "measured runs on other cards")):
        said = result[key]
        of = f"{said['plans']} {what}, {said['out_of_memory']} out of memory"
        found = markdown.bounded(markdown.brief_percent(said["recall"]), said["recall"] >= RECALL_BOUND)
        false = markdown.bounded(markdown.brief_percent(said["false"]), said["false"] <= FALSE_BOUND)
        rows += [
            (f"{of}: found", found, "", markdown.percent(RECALL_BOUND, 0)),
            ("false alarms", false, "", markdown.percent(FALSE_BOUND, 0)),
        ]
    if result["traced"]:
        mean, worst = mean_and_worst(result["traced"], "ours")
        text = f"{markdown.percent(mean)}, {markdown.percent(worst)}"
        rows.append((f"against {len(result['traced'])} traces, mean and worst", text, "", ""))
    return markdown.table(("what", "ours", "MARP as printed", "bound of ours"), rows)


def runs(result: Mapping[str, Any]) -> str:
    """A row a measured run, in Markdown."""
    return markdown.table(
        ("run", "real, GiB", "ours", "MARP"),
        (
            (
                row["config"].split(",precision")[0],
                f"{row['real_bytes'] / GIB:.2f}",
                f"{row['ours_bytes'] / GIB:.2f} ({markdown.percent(row['ours'])})",
                f"{row['marp_bytes'] / GIB:.2f} ({markdown.percent(row['marp'])})",
            )
            for row in result["measured"]
        ),
    )


def traces(result: Mapping[str, Any]) -> str:
    """A row a traced step, in Markdown."""
    return markdown.table(
        ("step", "traced, GiB", "ours", "at"),
        (
            (
                row["config"],
                f"{row['traced_bytes'] / GIB:.2f}",
                f"{row['ours_bytes'] / GIB:.2f} ({markdown.percent(row['ours'])})",
                row["moment"],
            )
            for row in result["traced"]
        ),
    )


def wrong(result: Mapping[str, Any]) -> str:
    """A row a wrong verdict, in Markdown."""
    named = (("search logs", "searched"), ("other cards", "on_cards"))
    return markdown.table(
        ("wrong verdict", "of"), ((text, name) for name, key in named for text in result[key]["wrong"])
    )


def _figures(result: Any) -> Mapping[str, Figure]:
    shares = {name: result[name] for name in ("ours_mean", "ours_worst", "marp_mean", "marp_worst")}
    shares |= {f"{key}.false": result[key]["false"] for key in ("searched", "on_cards")}
    return {
        name: Figure(markdown.brief_percent(share), share, (share - 1e-6, share + 1e-6))
        for name, share in shares.items()
    }


EVIDENCE = {
    "sizing_formula": Benchmark(
        ("benchmarks.sizing.formula", "--traced"),
        5.0,
        {"overall": overall, "runs": runs, "traces": traces, "wrong": wrong},
        _figures,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traced", action="store_true", help="also against the tracer (needs torch; minutes)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"{DATA} is not there: the public measurements are not part of this repository")
    rows = measured()
    result: dict[str, Any] = {
        "measured": rows,
        "searched": verdicts(searched()),
        "on_cards": verdicts(on_cards(rows)),
        "traced": [*traced(), *packaged()] if options.traced else [],
    }
    for key in ("ours", "marp"):
        result[f"{key}_mean"], result[f"{key}_worst"] = mean_and_worst(rows, key)
    print(json.dumps(result, indent=2) if options.json else EVIDENCE["sizing_formula"].markdown(result))


if __name__ == "__main__":
    main()
