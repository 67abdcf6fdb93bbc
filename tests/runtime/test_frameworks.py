"""The pieces inside the real frameworks: Lightning, Accelerate, transformers' Trainer and TRL."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from small_models import counting_text, language_model

from vramcast.ledger import Category, Entry, Ledger, Origin
from vramcast.runtime import (
    JsonLines,
    MemoryMonitor,
    ReferenceModel,
    lightning_callback,
    npo_loss,
    sequence_logprobs,
    to_accelerate,
    to_tensorboard,
    trainer_callback,
    trl_columns,
)


def dataset(count=8, length=12):
    return [{"input_ids": row, "labels": row.clone()} for row in counting_text(count, length)]


def scalars(folder):
    """Every scalar TensorBoard wrote below a folder, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in folder.rglob("events.out.*"):
        events = EventAccumulator(str(path)).Reload()
        found |= {
            tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }
    return found


def test_no_framework_is_imported_before_its_callback_is_asked_for():
    code = (
        "import sys, vramcast.runtime as r; r.MemoryMonitor; r.trainer_callback; r.ReferenceModel; r.FunctionalEdit;"
        "bad = {'transformers', 'lightning', 'accelerate', 'trl', 'wandb', 'tensorboard'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
def test_lightning_never_moves_saves_or_optimises_the_reference(tmp_path):
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    class Unlearning(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.policy = language_model()
            self.reference = ReferenceModel.copy_of(self.policy, "cpu:1")

        def training_step(self, batch, _):
            total = sequence_logprobs(
                self.policy(input_ids=batch["input_ids"]).logits, batch["labels"]
            ).total
            return npo_loss(total, self.reference.logprobs(batch).total, beta=0.1)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Unlearning()
    before = [p.clone() for p in module.reference._source.parameters()]
    monitor = MemoryMonitor(writers=[JsonLines(tmp_path / "memory.jsonl")])
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", logger=CSVLogger(tmp_path), callbacks=[lightning_callback(monitor)],
        log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(dataset(), batch_size=2))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=False)["state_dict"]
    assert all(name.startswith("policy.") for name in saved)
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, module.reference._source.parameters(), strict=True)
    )
    assert monitor.failure is None
    assert len(monitor.steps) == 3
    assert (
        "memory/host_rss_max" in (next(tmp_path.rglob("metrics.csv")).read_text().splitlines()[0])
    )
    assert len((tmp_path / "memory.jsonl").read_text().splitlines()) == 3


def test_transformers_trainer_logs_memory_through_its_own_tensorboard(tmp_path):
    from transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=3, logging_steps=1, report_to=["tensorboard"], use_cpu=True,
        per_device_train_batch_size=2, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=language_model(), args=args, train_dataset=dataset())
    monitor = MemoryMonitor()
    trainer.add_callback(trainer_callback(monitor, trainer))
    trainer.train()
    assert monitor.failure is None
    assert len(monitor.steps) == 3
    logged = {tag for tag in scalars(tmp_path) if "memory/host_rss_max" in tag}
    assert logged
    assert sum("memory/host_rss_max" in entry for entry in trainer.state.log_history) >= 3


def test_accelerate_trackers_receive_the_metrics_and_the_reference_stays_out(tmp_path):
    from accelerate import Accelerator
    from safetensors.torch import load_file

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(tmp_path))
    accelerator.init_trackers("run")
    policy = language_model()
    reference = ReferenceModel.copy_of(policy, "cpu")
    policy, optimizer = accelerator.prepare(policy, torch.optim.AdamW(policy.parameters(), lr=1e-3))
    with MemoryMonitor(writers=[to_accelerate(accelerator)]) as monitor:
        for start in range(0, 8, 2):
            ids = counting_text(8, 12)[start : start + 2]
            total = sequence_logprobs(policy(input_ids=ids).logits, ids).total
            loss = npo_loss(
                total, reference.logprobs({"input_ids": ids, "labels": ids}).total, beta=0.1
            )
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            monitor.end_step()
    accelerator.end_training()
    accelerator.save_state(str(tmp_path / "state"))
    names = set(load_file(next((tmp_path / "state").glob("*.safetensors"))))
    assert names <= set(policy.state_dict())
    assert len(scalars(tmp_path)["memory/host_rss_max"]) == 4


def test_trl_columns_are_what_trl_computes_itself_and_train(tmp_path):
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    words = Tokenizer(
        WordLevel(
            {"[PAD]": 0, "[EOS]": 1, "[UNK]": 2} | {f"w{i}": i for i in range(3, 64)},
            unk_token="[UNK]",
        )
    )
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="[EOS]", pad_token="[PAD]", unk_token="[UNK]"
    )
    rows = [
        {"prompt": f"w{i} w{i + 1}", "chosen": f"w{i + 2} w{i + 3}", "rejected": f"w{i + 9}"}
        for i in range(3, 11)
    ]
    args = DPOConfig(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, bf16=False,
        precompute_ref_log_probs=True, save_strategy="no", disable_tqdm=True, logging_steps=1,
        gradient_checkpointing=False,
    )  # fmt: skip
    model = language_model().eval()
    theirs = DPOTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    ours = trl_columns(ReferenceModel.copy_of(model, "cpu"), theirs.train_dataset, batch_size=3)
    for name, values in ours.items():
        torch.testing.assert_close(
            torch.tensor(values), torch.tensor(theirs.train_dataset[name]), rtol=1e-5, atol=1e-5
        )

    class Precomputed(DPOTrainer):
        """The columns come from our cache, so TRL runs no reference at all."""

        def _precompute_ref_logps(self, dataset, name, batch_size):
            for column, values in trl_columns(
                ReferenceModel.copy_of(model, "cpu"), dataset
            ).items():
                dataset = dataset.add_column(column, values)
            return dataset

    trainer = Precomputed(
        model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    assert trainer.ref_model is None
    trainer.train()
    first = trainer.state.log_history[0]["loss"]
    assert first == pytest.approx(0.6931, abs=1e-3)  # policy and reference are equal: -log(1/2)


def test_tensorboard_and_a_ledger_beside_each_other(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    weights = {"category": Category.WEIGHTS, "component": "w", "origin": Origin.FORMULA}
    ledger = Ledger(entries=(Entry(place="cpu:1", phases=("forward",), nbytes=100, **weights),))

    class Fixed:
        def peak(self, device):
            return 150, 200

        def reset(self, device):
            pass

    with SummaryWriter(str(tmp_path)) as board:
        monitor = MemoryMonitor(
            "cpu:1", ledger=ledger, counters=Fixed(), writers=[to_tensorboard(board)]
        )
        monitor.end_step()
    found = scalars(tmp_path)
    assert found["memory/alloc_max"] == [150]
    assert found["memory/res_max"] == [200]
    assert found["memory/alloc_over_predicted"] == [1.5]
    assert json.dumps(monitor.metrics)
