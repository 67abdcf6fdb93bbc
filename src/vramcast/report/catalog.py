"""Catalog models and GPUs → sheets and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.catalog.gpus import Gpu
from vramcast.catalog.models import CatalogModel
from vramcast.report.as_json import SCHEMA
from vramcast.report.table import Column, Row, Table
from vramcast.report.words import say
from vramcast.report.words.catalog import LABELS
from vramcast.units import MiB, format_gib

FEW = 5  # so many cards are shown with their details


def models_table(models: Sequence[CatalogModel], lang: str) -> Table:
    columns = (
        Column(title=say(LABELS, "model", lang)),
        Column(title=say(LABELS, "parameters", lang), right=True),
        Column(title=say(LABELS, "Hugging Face id", lang)),
        Column(title=say(LABELS, "class", lang)),
        Column(title=say(LABELS, "also known as", lang)),
    )
    rows = tuple(
        Row(
            cells=(
                model.name,
                f"{model.params:,}",
                model.hf_id,
                model.architecture,
                ", ".join(model.aliases),
            )
        )
        for model in models
    )
    return Table(title=say(LABELS, "models", lang, count=len(models)), columns=columns, rows=rows)


def models_json(models: Sequence[CatalogModel]) -> dict[str, Any]:
    return {"schema": SCHEMA, "models": [_model_json(model) for model in models]}


def gpus_table(gpus: Sequence[Gpu], lang: str) -> Table:
    columns = (
        Column(title="GPU"),
        Column(title=say(LABELS, "memory CUDA reports", lang), right=True),
        Column(title=say(LABELS, "on the box", lang), right=True),
        Column(title=say(LABELS, "bandwidth", lang), right=True),
        Column(title=say(LABELS, "bf16 dense", lang), right=True),
        Column(title=say(LABELS, "architecture", lang), right=True),
        Column(title=say(LABELS, "context", lang), right=True),
    )
    details = gpus if len(gpus) <= FEW else tuple(gpu for gpu in gpus if gpu.gap)
    return Table(
        title=say(LABELS, "GPUs", lang, count=len(gpus)),
        columns=columns,
        rows=tuple(_gpu_row(gpu, lang) for gpu in gpus),
        below=tuple(f"{gpu.name}: {text}" for gpu in details if (text := _details(gpu, lang))),
    )


def _details(gpu: Gpu, lang: str) -> str:
    parts = []
    if gpu.aliases:
        parts.append(f"{say(LABELS, 'also known as', lang)} {', '.join(gpu.aliases)}")
    if gpu.seen:
        parts.append(f"{say(LABELS, 'totals seen (MiB)', lang)} {gpu.seen}")
    if gpu.gap or gpu.notes:
        parts.append(gpu.gap or gpu.notes)
    return "; ".join(parts)


def gpus_json(gpus: Sequence[Gpu]) -> dict[str, Any]:
    return {"schema": SCHEMA, "gpus": [_gpu_json(gpu) for gpu in gpus]}


def _gpu_row(gpu: Gpu, lang: str) -> Row:
    unknown = say(LABELS, "unknown", lang)
    return Row(
        cells=(
            gpu.name,
            unknown if gpu.total_bytes is None else format_gib(gpu.total_bytes),
            "" if gpu.nominal_gb is None else f"{gpu.nominal_gb} GB",
            "" if gpu.bandwidth_gb_s is None else f"{gpu.bandwidth_gb_s:g} GB/s",
            "" if gpu.bf16_tflops is None else f"{gpu.bf16_tflops:g} TFLOPS",
            gpu.architecture,
            unknown if gpu.context_bytes is None else f"{gpu.context_bytes // MiB} MiB",
        )
    )


def _gpu_json(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "vendor": gpu.vendor,
        "capacity_bytes": gpu.total_bytes,
        "capacity_gap": gpu.gap or None,
        "capacity_seen": gpu.seen,
        "capacity_source": gpu.total_source,
        "nominal_gb": gpu.nominal_gb,
        "bandwidth_gb_s": gpu.bandwidth_gb_s,
        "bf16_tflops": gpu.bf16_tflops,
        "fp16_tflops": gpu.fp16_tflops,
        "fp32_tflops": gpu.fp32_tflops,
        "interconnect": gpu.interconnect,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "sm_count": gpu.sm_count,
        "supports_bf16": gpu.supports_bf16,
        "supports_fp8": gpu.supports_fp8,
        "context_bytes": gpu.context_bytes,
        "context_range_bytes": gpu.context_range_bytes,
        "context_source": gpu.context_source,
        "notes": gpu.notes,
    }


def _model_json(model: CatalogModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "hf_id": model.hf_id,
        "aliases": list(model.aliases),
        "architecture": model.architecture,
        "params_total": model.params,
        "params_checked": model.params_checked,
        "params_untied": model.params_untied,
        "config_source": model.source,
        "params_source": model.params_source,
        "notes": model.notes,
    }
