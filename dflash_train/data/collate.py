"""Rows of several lengths -> one right-padded Batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_train.data.manifest import Manifest
from dflash_train.data.prompt import Prompt
from dflash_train.records import Batch


def pad(rows: Sequence[Tensor], value: float) -> Tensor:
    """[n_i] tensors of one dtype -> [B, max n_i], filled up at the right."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


def collate(manifest: Manifest, indices: Sequence[int], rows: Sequence[int], prompt: Prompt) -> Batch:
    """Reads the audio of the given lines and packs them.

    indices: lines of the manifest (from 0). rows: their global row numbers in the step.
    Raises DataError with file:line.
    """
    utterances = [manifest.utterance(index) for index in indices]
    packed = [prompt.row(utterance) for utterance in utterances]
    audio = [torch.from_numpy(manifest.samples(index)) for index in indices]
    lengths = torch.tensor([len(row.ids) for row in packed])
    ids = pad([torch.from_numpy(row.ids) for row in packed], prompt.pad_id)
    return Batch(
        input_ids=ids,
        loss_mask=pad([torch.from_numpy(row.loss_mask) for row in packed], False),
        token_mask=torch.arange(ids.shape[1])[None] < lengths[:, None],
        audio_mask=pad([torch.from_numpy(row.audio_mask) for row in packed], False),
        rows=torch.tensor(list(rows), dtype=torch.int64),
        ids=tuple(utterance.id for utterance in utterances),
        audio=pad(audio, 0.0),
        audio_samples=torch.tensor([len(samples) for samples in audio], dtype=torch.int64),
    )
