"""Catalog models and GPUs → sheets and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.catalog.models import CatalogModel
from vramcast.report.sheet import Column, Row, Sheet, Words
from vramcast.units import MiB, format_gib

SCHEMA = "vramcast/1"
FEW = 5  # so many cards are shown with their details


def models_sheet(models: Sequence[CatalogModel], w: Words) -> Sheet:
    columns = (
        Column(title=w("model")), Column(title=w("parameters"), right=True), Column(title=w("Hugging Face id")),
        Column(title=w("class")), Column(title=w("also known as")),
    )  # fmt: skip
    rows = tuple(
        Row(cells=(model.name, f"{model.params:,}", model.hf_id, model.architecture, ", ".join(model.aliases)))
        for model in models
    )
    return Sheet(title=f"{len(models)} {w('models')}", columns=columns, rows=rows)


def models_json(models: Sequence[CatalogModel]) -> dict[str, Any]:
    return {"schema": SCHEMA, "models": [_model_json(model) for model in models]}


def gpus_sheet(gpus: Sequence[Gpu], w: Words) -> Sheet:
    columns = (
        Column(title="GPU"), Column(title=w("memory CUDA reports"), right=True),
        Column(title=w("on the box"), right=True), Column(title=w("bandwidth"), right=True),
        Column(title=w("bf16 dense"), right=True), Column(title=w("architecture"), right=True),
        Column(title=w("context"), right=True),
    )  # fmt: skip
    details = gpus if len(gpus) <= FEW else tuple(gpu for gpu in gpus if gpu.gap)
    return Sheet(
        title=f"{len(gpus)} {w('GPUs')}", columns=columns, rows=tuple(_gpu_row(gpu, w) for gpu in gpus),
        below=tuple(f"{gpu.name}: {text}" for gpu in details if (text := _details(gpu, w))),
    )  # fmt: skip


def _details(gpu: Gpu, w: Words) -> str:
    known_as = f"{w('also known as')} {', '.join(gpu.aliases)}" if gpu.aliases else ""
    seen = f"{w('totals seen (MiB)')} {gpu.seen}" if gpu.seen else ""
    return "; ".join(filter(None, (known_as, seen, gpu.gap or gpu.notes)))


def gpus_json(gpus: Sequence[Gpu]) -> dict[str, Any]:
    return {"schema": SCHEMA, "gpus": [_gpu_json(gpu) for gpu in gpus]}


def _gpu_row(gpu: Gpu, w: Words) -> Row:
    return Row(
        cells=(
            gpu.name,
            w("unknown") if gpu.total_bytes is None else format_gib(gpu.total_bytes),
            "" if gpu.nominal_gb is None else f"{gpu.nominal_gb} GB",
            "" if gpu.bandwidth_gb_s is None else f"{gpu.bandwidth_gb_s:g} GB/s",
            "" if gpu.bf16_tflops is None else f"{gpu.bf16_tflops:g} TFLOPS",
            gpu.architecture,
            w("unknown") if gpu.context_bytes is None else f"{gpu.context_bytes // MiB} MiB",
        )
    )


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name, "aliases": list(gpu.aliases), "vendor": gpu.vendor, "capacity_bytes": gpu.total_bytes,
        "capacity_gap": gpu.gap or None, "capacity_seen": gpu.seen, "capacity_source": gpu.total_source,
        "nominal_gb": gpu.nominal_gb, "bandwidth_gb_s": gpu.bandwidth_gb_s, "bf16_tflops": gpu.bf16_tflops,
        "fp16_tflops": gpu.fp16_tflops, "fp32_tflops": gpu.fp32_tflops, "interconnect": gpu.interconnect,
        "architecture": gpu.architecture, "compute_capability": gpu.compute_capability, "sm_count": gpu.sm_count,
        "supports_bf16": gpu.supports_bf16, "supports_fp8": gpu.supports_fp8, "context_bytes": gpu.context_bytes,
        "context_range_bytes": gpu.context_range_bytes, "context_source": gpu.context_source, "notes": gpu.notes,
    }  # fmt: skip


def _model_json(model: CatalogModel) -> dict[str, Any]:
    return {
        "name": model.name, "hf_id": model.hf_id, "aliases": list(model.aliases), "architecture": model.architecture,
        "params_total": model.params, "params_checked": model.params_checked, "params_untied": model.params_untied,
        "config_source": model.source, "params_source": model.params_source, "notes": model.notes,
    }  # fmt: skip
