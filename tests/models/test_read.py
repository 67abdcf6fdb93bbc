"""MODEL, as users type it: names, configs, folders, checkpoints, modules, and everything that is none of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from vramcast.errors import InputError, UnsupportedError, VramcastError
from vramcast.models.read import model as read
from vramcast.models.read.model import read_model
from vramcast.models.read.module import read_module
from vramcast.models.read.source import ModelSource

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip
# Worked by hand: two tables of 100·64; per layer four 64·64, three 64·128 and two norms of 64; a last norm.
LLAMA_PARAMS = 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def count(source: ModelSource) -> int:
    return sum(param.numel for param in source.table() if param.tied_to is None)


def write_config(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as save_pretrained leaves it."""
    folder = tmp_path_factory.mktemp("llama")
    keys = {
        key: value for key, value in LLAMA.items() if key not in ("model_type", "architectures")
    }
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys)).save_pretrained(folder)
    return folder


def test_a_catalog_name_and_its_hub_id_are_the_same_model() -> None:
    assert (
        count(read_model("phi-3-mini"))
        == count(read_model("microsoft/Phi-3-mini-4k-instruct"))
        == 3_821_079_552
    )


def test_another_organisation_is_mentioned_not_hidden() -> None:
    (note,) = read_model("someone/Qwen2.5-7B-Instruct").notes
    assert "was taken for Qwen/Qwen2.5-7B" in note
    assert read_model("Qwen/Qwen2.5-7B").notes == ()


def test_a_checkpoint_that_is_untied_where_the_built_model_is_tied_gives_both_figures() -> None:
    source = read_model("google/flan-t5-base")
    assert count(source) == 222_903_552
    assert any("222,903,552" in line and "247,577,856" in line for line in source.warnings)


def test_a_config_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert count(read_model(str(path))) == count(read_model(str(tmp_path))) == LLAMA_PARAMS


def test_weights_beside_a_config_confirm_it_silently(llama: Path) -> None:
    for text in (llama, llama / "model.safetensors", llama / "config.json"):
        source = read_model(str(text))
        assert source.params is None
        assert source.warnings == ()
        assert count(source) == LLAMA_PARAMS


def test_weights_that_disagree_with_their_config_are_a_warning_that_says_how(
    llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    write_config(tmp_path, num_hidden_layers=1)
    (warning,) = read_model(str(tmp_path)).warnings
    assert f"holds {LLAMA_PARAMS:,} elements" in warning
    assert "(+41,088)" in warning
    assert "Only in the checkpoint: model.layers.1." in warning


def test_a_head_stored_although_the_config_ties_it_is_named(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    write_config(tmp_path, tie_word_embeddings=True)
    (warning,) = read_model(str(tmp_path)).warnings
    assert "Stored although tied: lm_head.weight" in warning


def test_broken_weights_beside_a_good_config_do_not_hide_the_model(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"short")
    source = read_model(str(tmp_path))
    assert count(source) == LLAMA_PARAMS
    assert "could not confirm" in source.warnings[0]


def test_a_bare_checkpoint_gives_a_table_and_says_what_it_cannot(
    llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "w.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    for text in (tmp_path, tmp_path / "w.safetensors"):
        source = read_model(str(text))
        assert source.config is None
        assert count(source) == LLAMA_PARAMS
        assert "no config.json" in source.warnings[0]


def test_integers_in_a_checkpoint_are_pointed_out(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4, dtype=torch.uint8)}, tmp_path / "w.safetensors")
    assert any(
        "1 tensors are not floating point" in line for line in read_model(str(tmp_path)).warnings
    )


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "last.ckpt"])
def test_a_pickle_is_refused_with_a_way_forward(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedError, match=r"runs code when it is read.*config\.json"):
        read_model(str(tmp_path / name))


def test_an_adapter_folder_names_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-7B"}')
    with pytest.raises(InputError, match=r"PEFT adapter.*Qwen/Qwen2\.5-7B"):
        read_model(str(tmp_path))


def test_a_local_model_folder_wins_over_a_catalog_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phi-2").mkdir()
    assert read_model("phi-2").config is not None  # an empty folder of that name is no model
    write_config(tmp_path / "phi-2")
    assert count(read_model("phi-2")) == LLAMA_PARAMS


# ---- architectures without a description


@pytest.mark.parametrize("model_type", ["mamba", "xglm"])
def test_a_family_without_description_is_built_on_meta(tmp_path: Path, model_type: str) -> None:
    config = transformers.AutoConfig.for_model(model_type, num_layers=2, num_hidden_layers=2)
    cls = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    config.architectures = [cls.__name__]
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        expected = cls._from_config(config)
    source = read_model(str(tmp_path))
    assert count(source) == expected.num_parameters()
    assert {p.name: p.shape for p in source.table() if p.tied_to is None} == {
        name: tuple(tensor.shape) for name, tensor in expected.named_parameters()
    }


def test_without_transformers_an_unknown_family_is_refused_with_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "find_spec", lambda name: None)
    write_config(tmp_path, model_type="mamba")
    with pytest.raises(
        UnsupportedError, match=r"'mamba' is not supported by the formula engine. Known: .*llama"
    ):
        read_model(str(tmp_path)).table()


def test_a_type_nobody_knows_is_refused_with_what_is_known(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="no_such_thing")
    with pytest.raises(
        UnsupportedError, match=r"'no_such_thing' is known neither here nor to transformers.*llama"
    ):
        read_model(str(tmp_path)).table()


def test_a_config_transformers_cannot_build_is_one_line(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="mamba", hidden_size="wide")
    with pytest.raises(UnsupportedError, match="transformers cannot build it") as caught:
        read_model(str(tmp_path)).table()
    assert "\n" not in str(caught.value)


# ---- modules


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.norm = torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.shadow = torch.nn.Parameter(self.norm.weight.data)  # another Parameter, the same bytes
        self.register_buffer("mask", torch.zeros(99))
        self.blocks[0].weight.requires_grad_(False)
        self.blocks[1].to(torch.bfloat16)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_any_module_is_read_with_ties_dtypes_and_what_is_frozen(device: str) -> None:
    with torch.device(device):
        params = {param.name: param for param in read_module(Tied()).table()}
    assert sum(p.numel for p in params.values() if p.tied_to is None) == 40 + 2 * (16 + 4) + 8
    assert params["head.weight"].tied_to == "embed.weight"
    assert {params["shadow"].tied_to, params["norm.weight"].tied_to} == {"shadow", None}
    assert not params["blocks.0.weight"].trainable
    assert params["blocks.1.weight"].dtype.name == "bf16"
    assert [params[name].kind for name in ("embed.weight", "blocks.0.weight", "blocks.0.bias", "norm.weight")] == [
        "embedding", "linear", "bias", "norm",
    ]  # fmt: skip


def test_layers_of_a_module_become_sections_with_numbers() -> None:
    sections = read_module(Tied()).sections()
    assert [placed.name for placed in sections if placed.index is not None] == [
        "blocks.0",
        "blocks.1",
    ]


def test_what_is_not_a_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"a torch\.nn\.Module is needed, not int"):
        read_module(5)


# ---- what is none of these

WRONG = {
    "missing file": ("no/such/config.json", "no such file"),
    "missing folder": ("./nowhere", "no such file or folder"),
    "near name": ("qwen2.5-8b", "Did you mean qwen2.5-7b"),
    "nothing": ("", "unknown model"),
    "a device": ("/dev/zero", "neither a file nor a folder"),
    "a null byte": ("a\0b", "unknown model"),
    "endless": ("x" * 5000, "unknown model"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_model_gets_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(VramcastError, match=said) as caught:
        read_model(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "{}", '{"model_type": 5}', "[" * 100_000, "\ufeff{}", '{"model_type": "llama"}',
     '{"model_type": "llama", "hidden_size": -1}', '{"a": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_a_hostile_config_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(VramcastError) as caught:
        read_model(str(tmp_path)).table()
    assert "\n" not in str(caught.value)


def test_a_config_with_a_trillion_layers_is_refused_at_once(tmp_path: Path) -> None:
    write_config(tmp_path, num_hidden_layers=2**39)
    with pytest.raises(InputError, match="num_hidden_layers must be at most"):
        read_model(str(tmp_path))


def test_a_folder_with_nothing_in_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither a config\.json nor safetensors"):
        read_model(str(tmp_path))


values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5) | st.lists(
    st.integers(), max_size=3
)  # fmt: skip


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200
)
@given(
    changes=st.dictionaries(
        st.sampled_from([*LLAMA, "head_dim", "num_key_value_heads", "tie_word_embeddings"]), values
    )
)
def test_any_value_under_any_key_gives_a_table_or_one_clear_line(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    changes.pop("model_type", None)
    write_config(tmp_path, **changes)
    try:
        said = str(count(read_model(str(tmp_path))))
    except VramcastError as error:
        said = str(error)
    assert said
    assert "\n" not in said
