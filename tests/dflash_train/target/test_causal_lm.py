"""The text target: taps, logits, freezing, strict loading, decoding with a cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from dflash_train.errors import DataError, TargetError
from dflash_train.target.base import TargetIds, argmax_tokens
from dflash_train.target.causal_lm import CausalLMTarget, load_causal_lm_target, text_ids
from tests.dflash_train import tiny

ALL_TAPS = (0, 1, 2, 3)


@pytest.fixture(params=["qwen3", "llama"])
def target(request):
    return tiny.tiny_target(request.param)


def test_the_last_tap_is_the_residual_before_the_final_norm(target):
    batch = tiny.text_batch()
    reading = target.read(batch, [3], want_hidden=True)
    torch.testing.assert_close(target.decoder.norm(reading.taps), reading.hidden)
    with torch.no_grad():
        wanted = target.llm(input_ids=batch.input_ids, use_cache=False).logits
    torch.testing.assert_close(target.logits(reading.hidden), wanted)


def test_taps_are_the_layers_outputs_in_ascending_order(target):
    batch = tiny.text_batch()
    with torch.no_grad():
        states = target.decoder(input_ids=batch.input_ids, output_hidden_states=True, use_cache=False).hidden_states
    reading = target.read(batch, [0, 2], want_hidden=False)
    assert reading.hidden is None
    torch.testing.assert_close(reading.taps, torch.cat([states[1], states[3]], dim=-1))


@pytest.mark.parametrize("taps", [[2, 0], [1, 1], [-1, 2], [0, 4]])
def test_taps_out_of_order_or_range_are_refused(target, taps):
    with pytest.raises(TargetError, match=r"taps \["):
        target.read(tiny.text_batch(), taps, want_hidden=False)


def test_no_hook_is_left_behind(target):
    target.read(tiny.text_batch(), ALL_TAPS, want_hidden=False)
    assert not any(layer._forward_hooks for layer in target.layers)


def test_padding_of_the_neighbours_changes_nothing(target):
    alone = target.read(tiny.text_batch((17,)), ALL_TAPS, want_hidden=True)
    padded = target.read(tiny.text_batch((17, 40)), ALL_TAPS, want_hidden=True)
    torch.testing.assert_close(padded.taps[:1, :17], alone.taps)
    torch.testing.assert_close(padded.hidden[:1, :17], alone.hidden)


def test_the_target_is_frozen_and_stays_in_evaluation_mode(target):
    target.train()
    assert not any(module.training for module in target.modules())
    assert not any(parameter.requires_grad for parameter in target.parameters())


def test_logits_let_the_gradient_of_the_draft_through(target):
    hidden = torch.randn(1, 3, tiny.HIDDEN, requires_grad=True)
    target.logits(hidden).sum().backward()
    assert hidden.grad is not None


@pytest.mark.parametrize("windowed", [False, True])
def test_decoding_with_a_cache_equals_one_pass(windowed):
    window = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2} if windowed else {}
    target = tiny.tiny_target("qwen3", **window)
    ids = torch.randint(3, 95, (20,), generator=torch.Generator().manual_seed(3))
    row = tiny.one_text_row(ids, prompt=9)
    whole = target.read(row, [1, 3], want_hidden=True)
    state = target.start(target.prompt_embeds(row, 0), [1, 3])
    torch.testing.assert_close(state.taps, whole.taps[:, :9])
    torch.testing.assert_close(state.logits, target.logits(whole.hidden[:, 8]))
    logits, taps = target.extend(state, ids[None, 9:])
    torch.testing.assert_close(taps, whole.taps[:, 9:])
    torch.testing.assert_close(logits, target.logits(whole.hidden[:, 9:]))


@pytest.mark.parametrize("windowed", [False, True])
def test_a_cropped_cache_equals_a_recomputed_one(windowed):
    window = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2} if windowed else {}
    target = tiny.tiny_target("qwen3", **window)
    ids = torch.randint(3, 95, (1, 20), generator=torch.Generator().manual_seed(4))
    prompt = target.prompt_embeds(tiny.one_text_row(ids[0], prompt=8), 0)
    state, fresh = target.start(prompt, [0, 3]), target.start(prompt, [0, 3])
    target.extend(state, ids[:, 8:16])
    target.crop(state, 11)
    assert state.length == 11
    target.extend(fresh, ids[:, 8:11])
    rejected, recomputed = target.extend(state, ids[:, 12:20]), target.extend(fresh, ids[:, 12:20])
    for ours, wanted in zip(rejected, recomputed, strict=True):
        torch.testing.assert_close(ours, wanted)


def test_a_cache_is_not_cropped_to_more_than_it_holds(target):
    state = target.start(torch.zeros(1, 4, tiny.HIDDEN), [])
    assert state.taps.shape == (1, 4, 0)
    target.crop(state, 4)
    for length in (5, -1):
        with pytest.raises(ValueError, match="cannot crop"):
            target.crop(state, length)


def test_a_row_without_answer_has_no_prompt(target):
    with pytest.raises(DataError, match="text-1"):
        target.prompt_embeds(tiny.text_batch((12, 5), prompt=5), 1)


def test_ids_beyond_the_limit_are_never_chosen():
    logits = torch.zeros(1, 2, 8)
    logits[..., 7], logits[..., 3] = 9.0, 1.0
    assert argmax_tokens(logits, 7).tolist() == [[3, 3]]


@pytest.mark.parametrize(
    ("config_class", "model_class", "extra"),
    [
        (Gemma2Config, Gemma2ForCausalLM, {"query_pre_attn_scalar": 8}),
        (GraniteConfig, GraniteForCausalLM, {"embedding_multiplier": 12.0, "logits_scaling": 3.0}),
    ],
)
def test_scaled_embeddings_and_capped_logits_are_the_models_own(config_class, model_class, extra):
    shape = {k: v for k, v in tiny.SHAPE.items() if k != "tie_word_embeddings"}
    torch.manual_seed(0)
    llm = model_class(config_class(**shape, **extra, initializer_range=0.2)).eval()
    target = CausalLMTarget(llm, tiny.TEXT_IDS)
    batch = tiny.text_batch()
    seen = []
    target.layers[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    with torch.no_grad():
        wanted = llm(input_ids=batch.input_ids, use_cache=False)
    torch.testing.assert_close(target.embed(batch.input_ids), seen[0])
    reading = target.read(batch, [], want_hidden=True)
    torch.testing.assert_close(target.logits(reading.hidden), wanted.logits)


def test_absolute_positions_are_no_part_of_the_embedding():
    llm = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64)).eval()
    target = CausalLMTarget(llm, tiny.TEXT_IDS)
    ids = torch.arange(5)[None]
    torch.testing.assert_close(target.embed(ids), llm.transformer.wte(ids))


def test_a_recurrent_model_is_refused():
    llm = MambaForCausalLM(MambaConfig(vocab_size=97, hidden_size=32, state_size=4, num_hidden_layers=2))
    with pytest.raises(TargetError, match="only attention"):
        CausalLMTarget(llm, tiny.TEXT_IDS)


def saved(folder: Path) -> Path:
    tiny.tiny_llm().save_pretrained(folder)
    return folder


def test_a_saved_model_is_loaded_as_it_was(tmp_path):
    target = load_causal_lm_target(saved(tmp_path), torch.float32)
    for name, tensor in tiny.tiny_llm().state_dict().items():
        torch.testing.assert_close(target.llm.state_dict()[name], tensor, rtol=0, atol=0)
    assert (target.pad_id, target.eos_ids, target.vocab_size) == (tiny.PAD, (tiny.EOS,), tiny.VOCAB)


def drop(tensors):
    del tensors["model.layers.2.mlp.up_proj.weight"]


def add(tensors):
    tensors["model.layers.4.mlp.up_proj.weight"] = torch.zeros(2)


def misshape(tensors):
    tensors["model.norm.weight"] = torch.ones(31)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (drop, "missing: model.layers.2.mlp.up_proj.weight"),
        (add, "does not have: model.layers.4"),
        (misshape, "another shape than the model's: model.norm.weight"),
    ],
)
def test_a_checkpoint_is_loaded_whole_or_not_at_all(tmp_path, fault, words):
    path = saved(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    fault(tensors)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(TargetError, match=words):
        load_causal_lm_target(tmp_path, torch.float32)


@pytest.mark.parametrize("text", ["", "[1]", '{"model_type": "no-such-model"}'])
def test_a_folder_that_is_no_model_gets_one_line(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(TargetError) as seen:
        load_causal_lm_target(tmp_path, torch.float32)
    assert "\n" not in str(seen.value)
    with pytest.raises(TargetError, match="does not exist"):
        load_causal_lm_target(tmp_path / "nowhere", torch.float32)


def test_a_spare_row_of_the_vocabulary_serves_as_mask():
    class Tokenizer:
        mask_token_id = None

        def get_vocab(self):
            return {"a": 0, "b": 89}

    llm = tiny.tiny_llm()
    assert text_ids(llm, Tokenizer()) == TargetIds(pad_id=2, eos_ids=(1,), token_limit=90, mask_token_id=90)
    target = CausalLMTarget(llm, text_ids(llm, None))
    with pytest.raises(TargetError, match=r"draft\.mask_token_id"):
        _ = target.mask_token_id


def test_a_model_without_an_end_token_is_refused(tmp_path):
    path = saved(tmp_path) / "config.json"
    config = json.loads(path.read_text())
    config["eos_token_id"] = None
    path.write_text(json.dumps(config))
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(TargetError, match="eos_token_id"):
        load_causal_lm_target(tmp_path, torch.float32)
