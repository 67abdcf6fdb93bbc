"""Edited forwards: the same logits on one device and two, and the joint backward's gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from live_bytes import LiveBytes
from small_models import counting_text, language_model

from vramcast.errors import InputError, UnsupportedError
from vramcast.runtime import (
    FunctionalEdit,
    GraphCut,
    MemoryMonitor,
    Mend,
    kl_to_reference,
    label_positions,
)
from vramcast.runtime.training.mend import Running
from vramcast.runtime.training.placement import copy_to, module_bytes, move, normalise_device

MAIN, SUB = "cpu:2", "cpu:1"  # two logical devices that LiveBytes keeps apart
VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
OLD = VERSION < (5, 0)
LANGUAGE_MODEL = "model" if VERSION < (4, 52) else "model.language_model"  # of Qwen2-VL


def text_batch(size=2, length=12, seed=0):
    ids = counting_text(size, length, seed=seed)
    labels = ids.clone()
    labels[:, : length // 2] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def qwen2_vl():
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    text = {"vocab_size": 80, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1,
            "eos_token_id": 2}  # fmt: skip
    old_rope = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    text = {**text, **old_rope} if OLD else {"text_config": {**text, "rope_parameters": rope}}
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
              "temporal_patch_size": 2, "mlp_ratio": 2}  # fmt: skip
    torch.manual_seed(0)
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(**text, vision_config=vision, image_token_id=70, video_token_id=71,
                      vision_start_token_id=72, vision_end_token_id=73)
    ).eval()  # fmt: skip


def image_batch():
    ids = torch.tensor([[1, 72, 70, 70, 70, 70, 73, 5, 6, 7, 8, 9]])
    labels = ids.clone()
    labels[:, :8] = -100
    generator = torch.Generator().manual_seed(0)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
        **({} if OLD else {"mm_token_type_ids": (ids == 70).int()}),
        "pixel_values": torch.randn(16, 96, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }


CASES = {
    "llama": (
        lambda: language_model("llama"),
        "model.layers.{}.mlp.{}.weight",
        ("up_proj", "down_proj"),
        text_batch,
    ),
    "gemma2": (
        lambda: language_model("gemma2"),
        "model.layers.{}.mlp.{}.weight",
        ("up_proj", "down_proj"),
        text_batch,
    ),
    "gpt2": (
        lambda: language_model("gpt2"),
        "transformer.h.{}.mlp.{}.weight",
        ("c_fc", "c_proj"),
        text_batch,
    ),
    "qwen2_vl": (
        qwen2_vl,
        f"{LANGUAGE_MODEL}.layers.{{}}.mlp.{{}}.weight",
        ("up_proj", "down_proj"),
        image_batch,
    ),
}


def case(name):
    make, pattern, parts, batch = CASES[name]
    return (
        make().eval(),
        [pattern.format(layer, part) for layer in (2, 3) for part in parts],
        batch(),
    )


def editor(edit):
    """A hypernetwork that is no longer the identity, with frozen statistics so that it is a function."""
    torch.manual_seed(1)
    mend = Mend(edit, rank=4, initial_rate=1e-2)
    for p in mend.parameters():
        p.data.add_(torch.randn_like(p) * 0.02)
    for module in mend.modules():
        if isinstance(module, Running):
            module.eval()
            module.squares.fill_(1.0)
            module.count.fill_(2.0)
    return mend


def nll(batch):
    mask, labels = label_positions(batch["labels"])
    return mask, lambda logits: F.cross_entropy(logits.float(), labels)


@pytest.mark.parametrize("name", CASES)
def test_edited_logits_are_the_whole_models_on_one_device_and_on_two(name):
    model, names, batch = case(name)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    mask, loss_of = nll(batch)
    for place in (("cpu",), ("cpu", SUB)):
        edit = FunctionalEdit(model, names).place(*place)
        prefix = edit.prefix(batch)
        assert torch.equal(edit(prefix), model(**inputs).logits)
        weights = edit.edited(editor(edit)(edit.factors(prefix, loss_of, mask)))
        whole = torch.func.functional_call(model, weights, (), inputs).logits
        assert not torch.equal(whole, edit(prefix))
        assert torch.equal(edit(prefix, weights), whole)
        torch.testing.assert_close(edit(prefix, weights, mask), whole[mask], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_hypernetwork_gradients_are_the_joint_backwards(name):
    # The model in float64: what rounds is what the editor and the norms compute in float32.
    model, names, batch = case(name)
    model = model.double()
    batch = {key: v.double() if v.is_floating_point() else v for key, v in batch.items()}
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    mask, labels = label_positions(batch["labels"])
    edit = FunctionalEdit(model, names).place("cpu", SUB)
    mend = editor(edit)
    prefix = edit.prefix(batch)
    base = edit(prefix)

    def loss_of(logits):
        return F.cross_entropy(logits, labels)

    factors = edit.factors(prefix, loss_of, mask)

    def locality(logits):
        return kl_to_reference(logits, base, torch.ones(base.shape[:2], dtype=torch.bool))

    with GraphCut(edit.edited(mend(factors)), device=edit.sub_device) as cut:
        loss_of(edit(prefix, cut.leaves, mask)).backward()
        locality(edit(prefix, cut.leaves)).backward()
        cut.replay()
    found = [p.grad.clone() for p in mend.parameters()]
    mend.zero_grad()
    logits = torch.func.functional_call(model, edit.edited(mend(factors)), (), inputs).logits
    (loss_of(logits[mask]) + locality(logits)).backward()
    joint = torch.cat([p.grad.flatten() for p in mend.parameters()])
    rounding = 4 * torch.finfo(torch.float32).eps
    assert (torch.cat([g.flatten() for g in found]) - joint).norm() <= rounding * joint.norm()


def test_factors_are_the_two_factors_of_the_weights_gradient():
    model, names, batch = case("llama")
    mask, loss_of = nll(batch)
    edit = FunctionalEdit(model, names)
    factors = edit.factors(edit.prefix(batch), loss_of, mask)
    weights = {name: edit.weight(name).detach().requires_grad_() for name in names}
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    loss_of(torch.func.functional_call(model, weights, (), inputs).logits[mask]).backward()
    for name in names:
        product = factors[name].deltas.T @ factors[name].inputs
        torch.testing.assert_close(product, weights[name].grad, rtol=1e-5, atol=1e-7)
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())


def test_only_what_the_edited_forwards_need_is_moved_and_no_operation_mixes_devices():
    model, names, batch = case("qwen2_vl")
    with LiveBytes(model) as live:
        edit = FunctionalEdit(model, names).place(MAIN, SUB)
        mask, loss_of = nll(move(batch, edit.device))
        # Two of four layers, the last norm and the head; neither the embedding, the lower layers nor the vision tower.
        language = model.get_submodule(LANGUAGE_MODEL)
        moved = sum(
            module_bytes(m)
            for m in (*language.layers[2:], language.norm, model.lm_head, language.rotary_emb)
        )
        assert live.live[SUB] == moved < 0.5 * module_bytes(model)
        prefix = edit.prefix(batch)
        base = edit(prefix).detach()
        assert live._device_of[base.untyped_storage()._cdata] == MAIN
        mend = editor(edit)
        weights = edit.edited(mend(edit.factors(prefix, loss_of, mask)))
        with GraphCut(weights, device=edit.sub_device) as cut:
            loss_of(edit(prefix, cut.leaves, mask)).backward()
            kl_to_reference(edit(prefix, cut.leaves), base, mask).backward()
            cut.replay()
        assert live.peaks[SUB] > moved


def test_the_prefix_runs_once_and_keeps_no_graph():
    model, names, batch = case("llama")
    counted = []
    model.model.layers[0].register_forward_hook(lambda *_: counted.append(1))
    edit = FunctionalEdit(model, names)
    prefix = edit.prefix(batch)
    for _ in range(5):
        edit(prefix)
    assert len(counted) == 1
    assert not prefix.hidden.requires_grad
    assert not model.model.layers[2]._forward_pre_hooks


def test_one_device_shares_every_tensor_of_the_model():
    model, names, batch = case("llama")
    with LiveBytes(model) as live:
        edit = FunctionalEdit(model, names).place("cpu")
        assert live.total() == module_bytes(model)
        edit(edit.prefix(batch))
    assert edit.sub_device == edit.device == torch.device("cpu")


@pytest.mark.parametrize("device", [3, "3", "cuda:3", torch.device("cuda", 3)])
@pytest.mark.parametrize("sub_device", [3, "3", "cuda:3", torch.device("cuda:3")])
def test_one_device_in_two_spellings_is_refused(device, sub_device):
    model, names, _ = case("llama")
    with pytest.raises(InputError, match=r"both cuda:3: .* save nothing"):
        FunctionalEdit(model, names).place(device, sub_device)


def test_devices_are_normalised_and_nonsense_is_refused():
    assert (
        normalise_device("cuda")
        == normalise_device(0)
        == normalise_device("0")
        == torch.device("cuda", 0)
    )
    assert normalise_device("cpu:0") == torch.device("cpu")
    for nonsense in ("gpu3", "", True, 1.5, "-1"):
        with pytest.raises(InputError, match="not a device"):
            normalise_device(nonsense)
    model, names, _ = case("llama")
    with pytest.raises(UnsupportedError, match="cuda:0 is not here"):
        FunctionalEdit(model, names).place(0, 1)


def test_wrong_names_and_cuts_are_refused():
    model, names, _ = case("llama")
    with pytest.raises(
        UnsupportedError, match=r"Did you mean model\.layers\.2\.mlp\.up_proj\.weight"
    ):
        FunctionalEdit(model, ["model.layers.2.mlp.up_prj.weight"])
    with pytest.raises(UnsupportedError, match="not inside a ModuleList"):
        FunctionalEdit(model, ["lm_head.weight"])
    with pytest.raises(UnsupportedError, match="LlamaRMSNorm"):
        FunctionalEdit(model, ["model.layers.2.input_layernorm.weight"])
    with pytest.raises(InputError, match="Choose 0 to 2"):
        FunctionalEdit(model, names).place("cpu", from_layer=3)


@pytest.mark.parametrize("from_layer", [0, 1, 2])
def test_any_cut_below_the_first_edited_layer_gives_the_same_logits(from_layer):
    model, names, batch = case("gemma2")
    edit = FunctionalEdit(model, names).place("cpu", SUB, from_layer=from_layer)
    expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert torch.equal(edit(edit.prefix(batch)), expected)


def test_nested_batches_move_with_their_structure():
    from collections import namedtuple

    from transformers import BatchEncoding

    pair = namedtuple("pair", "a b")
    nested = {"x": [torch.zeros(1), ("text", torch.ones(2))], "y": pair(torch.ones(1), 3)}
    moved = move(nested, torch.device("meta"))
    assert moved["x"][0].is_meta
    assert moved["x"][1][0] == "text"
    assert moved["x"][1][1].is_meta
    assert moved["y"].a.is_meta
    assert moved["y"].b == 3
    assert move(BatchEncoding({"input_ids": torch.ones(1)}), torch.device("meta"))[
        "input_ids"
    ].is_meta


def test_the_published_hyperparameters_give_the_published_size():
    """Qwen2-VL-7B: up and down projections of three layers, rank 1920, one hidden layer: 346,660,864 parameters."""

    class Shapes:
        names = tuple(f"{layer}.{part}" for layer in (25, 26, 27) for part in ("up", "down"))
        device = torch.device("meta")

        def factor_widths(self, name):
            return (3584, 18944) if name.endswith("up") else (18944, 3584)

    with torch.device("meta"):
        mend = Mend(Shapes(), rank=1920, num_hidden=1)
    assert sum(p.numel() for p in mend.transforms.parameters()) == 346_660_864


def test_running_statistics_are_those_of_all_rows():
    torch.manual_seed(0)
    rows = torch.randn(50, 8) * 3 + 1
    running = Running(8)
    for part in rows.split([7, 20, 23]):
        padded = torch.cat((part, torch.full((3, 8), 99.0)))  # rows that are not kept do not count
        running(padded, torch.tensor([1.0] * len(part) + [0.0] * 3)[:, None])
    torch.testing.assert_close(running.mean, rows.mean(dim=0))
    torch.testing.assert_close((running.squares / (running.count - 1)).sqrt(), rows.std(dim=0))


def test_copies_share_nothing_and_keep_ties():
    model = language_model(tie_word_embeddings=True)
    twin = copy_to(model, torch.device("cpu"))
    assert twin.lm_head.weight is twin.model.embed_tokens.weight
    assert twin.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()


def learned_counting(model, steps=60):
    """An edit needs something to edit: a model that already counts."""
    optimizer = torch.optim.AdamW(model.requires_grad_(True).parameters(), lr=5e-3)
    for seed in range(steps):
        ids = counting_text(16, 12, seed=1000 + seed)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def unwanted(seed):
    """Texts whose second half breaks the rule that the model learned."""
    batch = text_batch(seed=seed)
    batch["labels"][:, 6:] = batch["input_ids"][:, 6:] = counting_text(2, 12, seed=seed + 500)[
        :, 6:
    ].flip(1)
    return batch


@pytest.mark.slow
def test_training_the_editor_lowers_the_edit_loss_and_both_devices_hold_what_the_ledger_says():
    model, names, _ = case("llama")
    torch.manual_seed(0)
    learned_counting(model)
    with LiveBytes(model, may_mix=True) as live:
        edit = FunctionalEdit(model, names).place(MAIN, SUB)
        mend = Mend(edit, rank=8, initial_rate=1e-2)
        optimizer = torch.optim.Adam(mend.parameters(), lr=1e-2, foreach=False)
        kept_bytes = edit.kept_bytes(edit.prefix(unwanted(0)), nll(unwanted(0))[0])
        ledger = edit.ledger(tokens=24, kept_bytes=kept_bytes)
        ledger.check()
        monitor = MemoryMonitor(MAIN, SUB, counters=live, ledger=ledger)
        losses = []
        for seed in range(40):
            batch = unwanted(seed % 4)
            mask, loss_of = nll(batch)
            prefix = edit.prefix(batch)
            steps = mend(edit.factors(prefix, loss_of, mask))
            with GraphCut(edit.edited(steps)) as cut:  # made on the second device already
                loss = loss_of(edit(prefix, cut.leaves, mask))
                loss.backward()
                if seed == 39:
                    held_sub = live.live[SUB]
                cut.replay()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            monitor.end_step()
    assert sum(losses[-4:]) < 0.7 * sum(losses[:4])
    assert {
        "memory/alloc_max",
        "memory/alloc_max_sub",
        "memory/res_max",
        "memory/res_max_sub",
    } <= set(monitor.metrics)
    # Between the losses and the replay: layers, edited weights, their gradients and the factors.
    predicted = ledger.moment("backward", SUB).allocated_bytes
    assert abs(held_sub - predicted) / predicted <= 0.05
