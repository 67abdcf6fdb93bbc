"""A reference that gives the same loss wherever it lives, and never becomes part of the training module."""

from __future__ import annotations

import copy
import sqlite3

import pytest
import torch
from live_bytes import LiveBytes
from small_models import counting_text, language_model
from torch import nn

from vramcast.errors import InputError, UnsupportedError
from vramcast.runtime import (
    ReferenceCache,
    ReferenceModel,
    dpo_loss,
    kl_to_reference,
    npo_loss,
    precompute_reference,
    sequence_logprobs,
)
from vramcast.runtime.training.placement import module_bytes


def batches(count=3, size=4, length=12, seed=0):
    """Padded to the right by a different amount per row, prompts unlabelled."""
    for index in range(count):
        ids = counting_text(size, length, seed=seed + index)
        lengths = torch.arange(size) % 4 + length - 4
        mask = (torch.arange(length) < lengths[:, None]).long()
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :3] = -100
        yield {"input_ids": ids, "attention_mask": mask, "labels": labels}


def trained_and_reference():
    """A policy that has moved away from its reference."""
    model = language_model()
    reference = copy.deepcopy(model).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return model.eval(), reference


def npo(model, reference, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return npo_loss(
        sequence_logprobs(logits, batch["labels"]).total, reference.logprobs(batch).total, beta=0.1
    )


def test_every_placement_gives_the_same_loss(tmp_path):
    model, base = trained_and_reference()
    same = ReferenceModel(copy.deepcopy(base), "same")
    cache = precompute_reference(ReferenceModel(copy.deepcopy(base), "cpu"), batches(), tmp_path)
    others = {
        "cpu": ReferenceModel.copy_of(base, "cpu"),
        "second device": ReferenceModel.copy_of(base, "cpu:1"),
        "precomputed": ReferenceModel(cache, "precomputed"),
    }
    for batch in batches():
        expected = npo(model, same, batch)
        for name, reference in others.items():
            torch.testing.assert_close(
                npo(model, reference, batch), expected, rtol=1e-6, atol=1e-6, msg=name
            )


def test_log_probabilities_are_transformers_loss():
    model = language_model().eval()
    batch = next(iter(batches()))
    expected = model(**batch).loss
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(
        sequence_logprobs(logits, batch["labels"]).batch_mean_loss(), expected
    )


def test_losses_against_their_definitions():
    policy, reference = torch.tensor([-4.0, -2.0]), torch.tensor([-3.0, -5.0])
    expected = -(2 / 0.1) * torch.log(1 / (1 + torch.exp(0.1 * (policy - reference)))).mean()
    torch.testing.assert_close(npo_loss(policy, reference, beta=0.1), expected)
    margin = (policy - reference) - (policy - 1 - reference)
    torch.testing.assert_close(
        dpo_loss(policy, policy - 1, reference, reference, beta=0.5),
        -torch.log(torch.sigmoid(0.5 * margin)).mean(),
    )
    logits = torch.randn(2, 5, 7)
    mask = torch.ones(2, 5, dtype=torch.bool)
    torch.testing.assert_close(
        kl_to_reference(logits, logits, mask), torch.tensor(0.0), atol=1e-6, rtol=0
    )
    assert kl_to_reference(logits, torch.randn(2, 5, 7), mask) > 0


class Job(nn.Module):
    """What people write: policy and reference as attributes of one module."""

    def __init__(self, policy, reference):
        super().__init__()
        self.policy = policy
        self.reference = reference


def test_the_reference_is_not_part_of_the_module_that_holds_it():
    policy = language_model()
    job = Job(policy, ReferenceModel.copy_of(policy, "cpu"))
    assert set(job.state_dict()) == {f"policy.{name}" for name in policy.state_dict()}
    assert len(list(job.parameters())) == len(list(policy.parameters()))
    job.to("meta")  # stands for the move to a GPU that a framework makes
    assert job.reference.device == torch.device("cpu")
    assert copy.deepcopy(job).reference is job.reference


def test_the_reference_on_another_device_costs_the_training_device_nothing():
    policy = language_model()
    batch = next(iter(batches()))
    with LiveBytes(policy) as live:
        before = live.live["cpu"]
        reference = ReferenceModel.copy_of(policy, "cpu:1")
        assert live.live["cpu"] == before
        assert live.peaks["cpu:1"] == module_bytes(policy)  # copied once, never twice
        moved = {name: value.to("cpu:1") for name, value in batch.items()}
        reference.logprobs(moved)
        assert (
            live.live["cpu:1"] - module_bytes(policy) <= sum(t.nbytes for t in moved.values()) + 256
        )
    assert reference.ledger().entries[0].nbytes == module_bytes(policy)


def test_a_copy_in_bfloat16_takes_half_and_the_policy_keeps_its_dtype_and_gradients():
    policy = language_model()
    reference = ReferenceModel.copy_of(policy, "cpu", dtype=torch.bfloat16)
    bill = reference.ledger().entries[0].nbytes
    assert abs(bill / module_bytes(policy) - 0.5) < 0.01
    assert all(p.dtype == torch.float32 and p.requires_grad for p in policy.parameters())
    full = ReferenceModel.copy_of(policy, "cpu").logprobs(next(iter(batches()))).total
    torch.testing.assert_close(
        reference.logprobs(next(iter(batches()))).total, full, rtol=0.02, atol=0
    )


def test_ties_between_weights_survive_the_copy():
    policy = language_model(tie_word_embeddings=True)
    reference = ReferenceModel.copy_of(policy, "cpu")
    assert reference.ledger().entries[0].nbytes == module_bytes(policy)


def test_the_reference_keeps_no_graph():
    policy = language_model()
    assert not ReferenceModel.copy_of(policy).logprobs(next(iter(batches()))).total.requires_grad
    assert not ReferenceModel.copy_of(policy).logits(next(iter(batches()))).requires_grad


def test_an_interrupted_precomputation_goes_on_where_it_stopped(tmp_path):
    base = language_model().eval()
    data = list(batches(4))

    def stop_after_two(index):
        if index == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        precompute_reference(ReferenceModel(base), data, tmp_path, on_batch=stop_after_two)
    counted = []
    base.register_forward_hook(lambda *_: counted.append(1))
    cache = precompute_reference(ReferenceModel(base), data, tmp_path)
    assert len(counted) == 2
    assert len(cache) == 16
    cache.require(data)


def test_the_cache_finds_samples_in_any_order_batch_and_padding(tmp_path):
    base = language_model().eval()
    (batch,) = batches(1)
    reference = ReferenceModel(
        precompute_reference(ReferenceModel(base), [batch], tmp_path), "precomputed"
    )
    known = reference.logprobs(batch)
    order = [2, 0, 3]
    wider = {
        "input_ids": nn.functional.pad(batch["input_ids"][order], (0, 5), value=0),
        "attention_mask": nn.functional.pad(batch["attention_mask"][order], (0, 5), value=0),
        "labels": nn.functional.pad(batch["labels"][order], (0, 5), value=-100),
    }
    assert torch.equal(reference.logprobs(wider).total, known.total[order])
    assert torch.equal(reference.logprobs(wider).num_tokens, known.num_tokens[order])


def test_another_model_tokenizer_or_data_is_refused(tmp_path):
    base = language_model().eval()
    cache = precompute_reference(ReferenceModel(base), batches(), tmp_path, tokenizer="tokenizer-a")
    ReferenceCache(tmp_path, model=base, tokenizer="tokenizer-a")
    with pytest.raises(InputError, match="another tokenizer"):
        ReferenceCache(tmp_path, model=base, tokenizer="tokenizer-b")
    other = copy.deepcopy(base)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3  # one number in one weight
    with pytest.raises(InputError, match="another model"):
        ReferenceCache(tmp_path, model=other, tokenizer="tokenizer-a")
    with pytest.raises(InputError, match="another model"):
        precompute_reference(ReferenceModel(other), batches(), tmp_path, tokenizer="tokenizer-a")
    with pytest.raises(InputError, match="4 of 4 samples are not in"):
        cache.require(batches(seed=100))
    relabelled = next(iter(batches()))
    relabelled["labels"][0, 3] = -100
    with pytest.raises(InputError, match="1 of 4 samples"):
        cache.require([relabelled])


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500.0},
        {"rms_norm_eps": 0.1},
        {"hidden_act": "gelu"},
        {"num_attention_heads": 2, "head_dim": 16},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_same_weights_with_other_settings_are_another_model(tmp_path, changes):
    base = language_model().eval()
    other = language_model(**changes).eval()
    if "num_attention_heads" in changes:
        other = language_model(**changes, num_key_value_heads=1).eval()
    other.load_state_dict(base.state_dict())
    batch = next(iter(batches()))
    assert not torch.equal(other(**batch).logits, base(**batch).logits)
    precompute_reference(ReferenceModel(base), batches(), tmp_path)
    with pytest.raises(InputError, match="another model") as refused:
        ReferenceCache(tmp_path, model=other)
    told = {"rope_theta": "rope_", "hidden_act": "hidden_act is silu, not gelu"}
    assert told.get(next(iter(changes)), next(iter(changes))) in str(refused.value)


def test_settings_that_decide_nothing_leave_a_model_the_same(tmp_path):
    base = language_model().eval()
    precompute_reference(ReferenceModel(base), batches(), tmp_path)
    policy = language_model(attention_dropout=0.1, use_cache=False, pad_token_id=3).train()
    policy.load_state_dict(base.state_dict())
    policy.gradient_checkpointing_enable()
    policy.config._name_or_path = "elsewhere"
    ReferenceCache(tmp_path, model=policy).require(batches())


class Angles(nn.Module):
    """A model of nobody's library: its settings are in an unsaved buffer and in a layer's eps."""

    def __init__(self, theta=100.0, eps=1e-5):
        super().__init__()
        self.embed, self.norm, self.head = (
            nn.Embedding(64, 8),
            nn.LayerNorm(8, eps=eps),
            nn.Linear(8, 64),
        )
        self.register_buffer("angles", theta ** -torch.arange(8.0), persistent=False)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.norm(self.embed(input_ids) * self.angles))


def test_a_model_without_a_config_is_known_by_its_modules_and_buffers(tmp_path):
    base = Angles().eval()
    precompute_reference(ReferenceModel(base), batches(), tmp_path)
    same, *others = Angles(), Angles(theta=50.0), Angles(eps=0.1)
    for model in (same, *others):
        model.load_state_dict(base.state_dict())
    ReferenceCache(tmp_path, model=same).require(batches())
    for other in others:
        with pytest.raises(InputError, match="another model"):
            ReferenceCache(tmp_path, model=other)


@pytest.mark.slow
def test_adapters_with_another_scale_are_another_model(tmp_path):
    from peft import LoraConfig, get_peft_model

    def adapted(alpha):
        config = LoraConfig(
            r=2, lora_alpha=alpha, target_modules=["q_proj"], init_lora_weights=False
        )
        torch.manual_seed(0)
        return get_peft_model(language_model(), config).eval()

    precompute_reference(ReferenceModel(adapted(4)), batches(1), tmp_path)
    ReferenceCache(tmp_path, model=adapted(4)).require(batches(1))
    with pytest.raises(InputError, match="another model"):
        ReferenceCache(tmp_path, model=adapted(8))


def test_a_cache_of_the_first_format_is_refused_in_one_line(tmp_path):
    precompute_reference(ReferenceModel(language_model().eval()), batches(1), tmp_path)
    with sqlite3.connect(tmp_path / "rank-00000.sqlite") as file:
        file.execute("UPDATE meta SET value = '1' WHERE name = 'format'")
        file.execute("DELETE FROM meta WHERE name = 'settings'")
    with pytest.raises(
        InputError, match=r"has format 1, this vramcast reads 2.*run precompute_reference again"
    ) as old:
        ReferenceCache(tmp_path, model=language_model().eval())
    assert "\n" not in str(old.value)


def test_batches_without_labels_are_required_as_they_were_computed(tmp_path):
    bare = [
        {name: value for name, value in batch.items() if name != "labels"} for batch in batches()
    ]
    cache = precompute_reference(ReferenceModel(language_model().eval()), bare, tmp_path / "bare")
    cache.require(bare)
    cache.require([{**batch, "labels": None} for batch in bare])
    labelled = precompute_reference(
        ReferenceModel(language_model().eval()), batches(), tmp_path / "labelled"
    )
    with pytest.raises(
        InputError, match=r"this batch has none: every real token counts"
    ) as refused:
        labelled.require(bare)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match=r"without 'input_ids'.*it has text") as refused:
        cache.require([{"text": ["a"]}])
    assert "\n" not in str(refused.value)


def test_a_real_tokenizer_is_told_from_a_changed_one(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"[UNK]": 0, "a": 1, "b": 2}
    first = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="[UNK]")))
    second = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words | {"c": 3}, unk_token="[UNK]"))
    )
    base = language_model().eval()
    precompute_reference(ReferenceModel(base), batches(), tmp_path, tokenizer=first)
    ReferenceCache(tmp_path, model=base, tokenizer=first)
    with pytest.raises(InputError, match="another tokenizer"):
        ReferenceCache(tmp_path, model=base, tokenizer=second)


def test_a_broken_cache_file_is_refused(tmp_path):
    (tmp_path / "rank-00000.sqlite").write_bytes(b"not a database, " * 100)
    with pytest.raises(InputError, match="is not a reference cache"):
        ReferenceCache(tmp_path, model="x")
    (tmp_path / "rank-00000.sqlite").unlink()
    with sqlite3.connect(tmp_path / "rank-00000.sqlite") as file:
        file.execute("CREATE TABLE other (x)")
    with pytest.raises(InputError, match="is not a reference cache"):
        ReferenceCache(tmp_path, model="x")


def test_wrong_placements_are_refused(tmp_path):
    base = language_model()
    with pytest.raises(InputError, match="does not go with"):
        ReferenceModel(base, "precomputed")
    with pytest.raises(UnsupportedError, match="cuda:7 is not here"):
        ReferenceModel(base, "cuda:7")
    with pytest.raises(InputError, match="not a device"):
        ReferenceModel(base, "gpu one")
    cache = precompute_reference(ReferenceModel(base.eval()), batches(1), tmp_path)
    with pytest.raises(InputError, match="not logits"):
        ReferenceModel(cache, "precomputed").logits(next(iter(batches(1))))


@pytest.mark.slow
def test_unlearning_with_a_reference_raises_the_loss_on_forgotten_text_and_lowers_npo():
    torch.manual_seed(0)
    policy = language_model().train()
    data = next(iter(batches(1, size=8)))
    learn = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    for _ in range(30):
        policy(**data).loss.backward()
        learn.step()
        learn.zero_grad()
    forget = torch.optim.AdamW(policy.parameters(), lr=1e-3, foreach=False)
    known, losses = policy(**data).loss.item(), []
    # The sums that come back say only "cpu", so the way back from "cpu:1" cannot be seen: let them mix.
    with LiveBytes(policy, may_mix=True) as live:
        reference = ReferenceModel.copy_of(policy, "cpu:1")
        for step in range(15):
            loss = npo(policy, reference, data)
            loss.backward()
            forget.step()
            if step == 14:
                held = live.live["cpu"]
            forget.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert policy(**data).loss.item() > known + 0.5
    # Weights, gradients and two AdamW moments in float32; the reference is not among them.
    predicted = 4 * module_bytes(policy)
    assert abs(held - predicted) / predicted <= 0.05
    assert live.live["cpu:1"] == module_bytes(policy)
