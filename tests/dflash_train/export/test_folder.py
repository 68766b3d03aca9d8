"""An export is what a server needs, or an error (specification 5)."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_train.config import Variant
from dflash_train.errors import ExportError
from dflash_train.export.config_json import from_config_json, to_config_json
from dflash_train.export.folder import load_export, read_meta, write_export
from tests.dflash_train.drafts import shake, tiny_recipe

BOTH = pytest.mark.parametrize("variant", list(Variant))


@pytest.fixture
def draft():
    return shake(tiny_recipe().module)


@pytest.fixture
def folder(draft, tmp_path):
    write_export(tmp_path / "step=00000006", draft.shape, draft.state_dict(), {"step": 6})
    return tmp_path / "step=00000006"


@BOTH
def test_config_json_has_the_servers_fields_and_reads_back(variant):
    shape = tiny_recipe(variant).module.shape
    config = to_config_json(shape)
    assert config["architectures"] == [{"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}[variant]]
    assert config["model_type"] == "qwen3"
    assert config["is_causal"] is False
    assert config["dflash_config"]["causal"] is False
    assert config["dflash_config"]["sample_from_anchor"] is False
    assert config["block_size"] == config["dflash_config"]["block_size"] == 8
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["dflash_config"]["target_layer_ids"] == [1, 2]
    leaks = {"partial_rotary_factor", "text_config", "quantization_config", "auto_map", "draft_vocab_size"}
    assert not leaks & set(config)
    dflash2_keys = {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}
    assert (dflash2_keys <= set(config["dflash_config"])) == (variant is Variant.dflash2)
    assert from_config_json(json.loads(json.dumps(config))) == shape


def test_the_file_holds_the_drafts_tensors_in_bf16_and_nothing_else(draft, folder):
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == set(draft.state_dict())
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert read_meta(folder) == {"step": 6}


def test_a_reload_computes_what_was_written_bit_for_bit_in_bf16(draft, folder):
    again, written = load_export(folder, torch.bfloat16), draft.to(torch.bfloat16)
    taps, stream = torch.randn(1, 9, 64).bfloat16(), torch.randn(1, 16, 32).bfloat16()
    mask = torch.ones(1, 1, 16, 25, dtype=torch.bool)
    where = (torch.arange(9)[None], stream, torch.arange(16)[None], mask)
    with torch.no_grad():
        assert again(taps, *where).equal(written(taps, *where))


def test_an_export_is_never_overwritten(draft, folder):
    with pytest.raises(ExportError, match="never overwritten"):
        write_export(folder, draft.shape, draft.state_dict(), {})


def spoil(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("layers.1.mlp.down_proj.weight"), "missing .'layers.1.mlp.down_proj.weight'"),
        (lambda t: t.update({"lm_head.weight": torch.ones(2)}), "unexpected .'lm_head.weight'"),
        (lambda t: t.update({"fc.weight": torch.ones(32, 32)}), "of another shape .'fc.weight'"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "not finite: .'norm.weight'"),
        (lambda t: t["fc.weight"].zero_(), "fc.weight is all zero"),
    ],
)
def test_what_a_server_would_load_silently_wrong_is_an_error(folder, change, says):
    spoil(folder, change)
    with pytest.raises(ExportError, match=says):
        load_export(folder, torch.float32)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("architectures", ["Qwen3DFlash2DraftModel"], "servers register"),
        ("block_size", 16, "16 at the top, 8 in dflash_config"),
        ("dflash_config.sample_from_anchor", True, "another block layout"),
        ("dflash_config.conv_kernel_size", None, "no conv_kernel_size"),
        ("rope_parameters", None, "no rope_parameters"),
        ("dflash_config.target_layer_ids", [1, 2, 3], "of another shape .'fc.weight'"),
    ],
)
def test_a_changed_config_field_is_an_error(folder, key, value, says):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    section, _, leaf = key.rpartition(".")
    holder = config[section] if section else config
    if value is None:
        del holder[leaf]
    else:
        holder[leaf] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ExportError, match=says):
        load_export(folder, torch.float32)


def test_a_folder_that_is_no_export_is_an_error(tmp_path):
    with pytest.raises(ExportError, match="not an export"):
        load_export(tmp_path, torch.float32)
