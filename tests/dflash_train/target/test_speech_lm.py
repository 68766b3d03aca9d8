"""The speech target: features, audio token counts, padding, its folder, decoding."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_train.data.loader import EvalData
from dflash_train.data.manifest import open_manifest
from dflash_train.errors import DataError, TargetError
from dflash_train.target.causal_lm import place_frames
from dflash_train.target.features import Geometry, LogMel
from dflash_train.target.load import load_prompt, load_target
from dflash_train.target.speech_lm import SpeechLM
from tests.dflash_train import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speech")


@pytest.fixture(scope="module")
def speech_lm(folder):
    return tiny.tiny_speech_lm(folder)


@pytest.fixture(scope="module")
def manifest(folder):
    return open_manifest(tiny.tiny_utterances(folder))


def batch_of(speech_lm, manifest, lines):
    from dflash_train.data.collate import collate

    return collate(manifest, lines, range(len(lines)), speech_lm.prompt())


@pytest.mark.parametrize("num_samples", [400, 401, 1000, 1679, 1680, 1681, 2960, 16000, 16001, 80123, 160000])
def test_the_count_of_audio_tokens_is_the_encoders(speech_lm, num_samples):
    audio = torch.randn(1, num_samples, generator=torch.Generator().manual_seed(0))
    frames, mask = speech_lm.front(audio, torch.tensor([num_samples]))
    assert speech_lm.facts.geometry.num_audio_tokens(num_samples) == int(mask.sum()) == frames.shape[1]


def test_audio_shorter_than_a_window_has_no_token():
    with pytest.raises(DataError, match="at least 400"):
        Geometry(16).num_audio_tokens(399)


def test_padding_of_the_neighbours_changes_no_feature():
    features = LogMel(Geometry(16))
    audio = torch.from_numpy(tiny.tone(0, 9000))[None]
    alone, mask = features(audio, torch.tensor([9000]))
    padded, padded_mask = features(torch.nn.functional.pad(audio, (0, 7777)), torch.tensor([9000]))
    assert int(padded_mask.sum()) == int(mask.sum()) == alone.shape[1]
    torch.testing.assert_close(padded[:, : alone.shape[1]], alone)
    assert not padded[:, alone.shape[1] :].any()


def test_features_are_normalised_within_the_utterance():
    features, mask = LogMel(Geometry(16))(torch.randn(1, 32000), torch.tensor([32000]))
    assert mask.all()
    torch.testing.assert_close(features.mean(1), torch.zeros(1, 16), atol=1e-4, rtol=0)
    torch.testing.assert_close(features.std(1), torch.ones(1, 16), atol=2e-2, rtol=0)


@pytest.mark.parametrize("training", [False, True])
def test_padding_of_the_neighbours_changes_no_frame_even_in_training(speech_lm, manifest, training):
    speech_lm.front.train(training)
    batch = batch_of(speech_lm, manifest, [0, 1, 2, 3])
    frames, mask = speech_lm.front(batch.audio, batch.audio_samples)
    for row in range(4):
        samples = batch.audio_samples[row : row + 1]
        alone, _ = speech_lm.front(batch.audio[row : row + 1, : int(samples)], samples)
        torch.testing.assert_close(frames[row][mask[row]], alone[0], atol=2e-5, rtol=1e-4)
    speech_lm.eval()


def test_padding_of_the_neighbours_changes_no_tap(speech_lm, manifest):
    target = speech_lm.target()
    together = target.read(batch_of(speech_lm, manifest, [0, 1, 2]), [0, 3], want_hidden=True)
    for row in range(3):
        alone = target.read(batch_of(speech_lm, manifest, [row]), [0, 3], want_hidden=True)
        length = alone.taps.shape[1]
        torch.testing.assert_close(together.taps[row, :length], alone.taps[0], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(together.hidden[row, :length], alone.hidden[0], atol=2e-5, rtol=1e-4)


def test_what_is_heard_reaches_the_answer(speech_lm, manifest):
    from dataclasses import replace

    batch = batch_of(speech_lm, manifest, [0])
    deaf = replace(batch, audio=torch.zeros_like(batch.audio))
    target = speech_lm.target()
    assert not torch.allclose(target.read(batch, [3], False).taps[:, -1], target.read(deaf, [3], False).taps[:, -1])


def test_frames_are_placed_in_order_and_counted():
    embeddings, frames = torch.zeros(2, 5, 3), torch.arange(18.0).view(2, 3, 3)
    places = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 1, 0, 0]], dtype=torch.bool)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    placed = place_frames(embeddings, places, frames, mask)
    torch.testing.assert_close(placed[0, 1:4], frames[0])
    torch.testing.assert_close(placed[1, 1:3], frames[1, :2])
    assert not placed[~places].any()
    with pytest.raises(DataError, match="differ in number"):
        place_frames(embeddings, places, frames, torch.ones_like(mask))


def test_decoding_with_a_cache_equals_one_pass(speech_lm, manifest):
    target, batch = speech_lm.target(), batch_of(speech_lm, manifest, [5, 1])
    for row in range(2):
        whole = target.read(batch_of(speech_lm, manifest, [[5, 1][row]]), [1, 3], want_hidden=True)
        prompt = target.prompt_embeds(batch, row)
        start = prompt.shape[1]
        answer = batch.input_ids[row][batch.loss_mask[row]][None]
        state = target.start(prompt, [1, 3])
        logits, taps = target.extend(state, answer)
        kinds = {"atol": 2e-5, "rtol": 1e-4}
        torch.testing.assert_close(state.logits, target.logits(whole.hidden[:, start - 1]), **kinds)
        torch.testing.assert_close(taps, whole.taps[:, start:], **kinds)
        torch.testing.assert_close(logits, target.logits(whole.hidden[:, start:]), **kinds)


def test_a_folder_gives_back_what_was_saved(speech_lm, manifest, tmp_path):
    speech_lm.save(tmp_path, torch.float32)
    loaded = load_target(tmp_path)
    batch = batch_of(speech_lm, manifest, [0, 3])
    ours, wanted = loaded.target.read(batch, [0, 3], True), speech_lm.target().read(batch, [0, 3], True)
    torch.testing.assert_close(ours.hidden, wanted.hidden, rtol=0, atol=0)
    assert loaded.prompt.row(manifest.utterance(0)).ids.tolist() == batch.input_ids[0][batch.token_mask[0]].tolist()
    assert load_prompt(tmp_path).prefix == loaded.prompt.prefix


def test_a_saved_model_is_bf16_and_runs_in_bf16(speech_lm, manifest, tmp_path):
    speech_lm.save(tmp_path)
    for path in tmp_path.rglob("*.safetensors"):
        assert {t.dtype for t in load_file(path).values()} <= {torch.bfloat16, torch.int64}
    target = load_target(tmp_path, torch.bfloat16).target
    reading = target.read(batch_of(speech_lm, manifest, [0]), [3], want_hidden=True)
    assert reading.taps.dtype == torch.bfloat16
    assert torch.isfinite(reading.hidden).all()
    assert target.front.encoder.encode_positions.inv_freq.dtype == torch.float32


def change(path, fault):
    tensors = load_file(path)
    name = sorted(tensors)[0]
    if fault == "missing":
        del tensors[name]
    elif fault == "extra":
        tensors["surplus.weight"] = torch.zeros(2)
    else:
        tensors[name] = torch.zeros(tensors[name].numel() + 1)
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("fault", ["missing", "extra", "mis-shaped"])
@pytest.mark.parametrize("part", ["encoder/model.safetensors", "llm/model.safetensors", "projector.safetensors"])
def test_every_part_is_loaded_whole_or_not_at_all(speech_lm, tmp_path, part, fault):
    speech_lm.save(tmp_path)
    change(tmp_path / part, fault)
    with pytest.raises(TargetError) as seen:
        SpeechLM.from_folder(tmp_path)
    assert "\n" not in str(seen.value)


@pytest.mark.parametrize(
    ("edit", "words"),
    [({"version": 2}, "version 2"), ({"surprise": 1}, "surprise"), ({"num_mel_bins": 17}, "16 mel bins")],
)
def test_a_description_that_does_not_fit_is_refused(speech_lm, tmp_path, edit, words):
    speech_lm.save(tmp_path)
    path = tmp_path / "speech_lm.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
    with pytest.raises(TargetError, match=words):
        SpeechLM.from_folder(tmp_path)


def test_a_folder_without_tokenizer_is_refused(speech_lm, tmp_path):
    speech_lm.save(tmp_path)
    for path in (tmp_path / "llm").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(TargetError, match="no tokenizer"):
        load_target(tmp_path)


def test_a_text_target_refuses_audio(speech_lm, manifest):
    batch = next(EvalData(manifest, speech_lm.prompt(), 1).batches())
    with pytest.raises(TargetError, match="text LLM"):
        tiny.tiny_target().read(batch, [0], want_hidden=False)
