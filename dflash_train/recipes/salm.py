"""The recipe `salm`: a speech LLM trained from scratch on transcripts.

    loss = [ sum of cross-entropy over supervised tokens + ctc_weight * sum of CTC over rows ] / denominator

The denominator is the number of supervised tokens of the whole step (all micro-batches, all ranks), so the loss is
globally normalised at its birth. CTC (Graves et al. 2006) on the encoder's frames teaches the encoder where the words
are before the LLM can; its head is used in training only and is no part of what is saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import ParakeetEncoder, ParakeetEncoderConfig, Qwen3Config, Qwen3ForCausalLM

from dflash_train.config import SalmConfig
from dflash_train.data.prompt import Prompt
from dflash_train.data.tokenizer import AUDIO, MASK, PAD, PROMPT
from dflash_train.errors import TargetError
from dflash_train.recipes.augment import SpecAugment
from dflash_train.recipes.base import Numbers
from dflash_train.recipes.gather import whole_state
from dflash_train.records import Batch
from dflash_train.target.causal_lm import place_frames
from dflash_train.target.features import Geometry
from dflash_train.target.speech_lm import Projector, SpeechFacts, SpeechFront, SpeechLM
from dflash_train.target.strict import load_tokenizer

MAX_POSITIONS = 4096
EXPORT_FOLDER = "speech_lm"  # in the run directory


class SalmOutput(NamedTuple):
    """A tuple, since FSDP2 looks for the tensors of an output in tuples and not in dataclasses.

    hidden [B, S, H] after the final norm; frames [B, F, E] of the encoder and their mask bool [B, F]."""

    hidden: Tensor
    frames: Tensor
    frame_mask: Tensor


class SalmModule(nn.Module):
    """What is trained: the speech LLM and the CTC head."""

    def __init__(self, speech_lm: SpeechLM, augment: SpecAugment | None) -> None:
        super().__init__()
        self.speech_lm = speech_lm
        self.augment = augment
        size = speech_lm.front.encoder.config.hidden_size
        self.ctc_head = nn.Linear(size, speech_lm.facts.token_limit + 1)  # the last class is CTC's blank

    def forward(self, batch: Batch) -> SalmOutput:
        """Runs a batch that has audio; features are masked in training only."""
        assert batch.audio is not None
        assert batch.audio_samples is not None
        front, llm = self.speech_lm.front, self.speech_lm.llm
        features, mask = front.features(batch.audio, batch.audio_samples)
        if self.training and self.augment is not None:
            features = self.augment(features)
        frames, frame_mask = front.encode(features, mask)
        embeddings = place_frames(
            llm.get_input_embeddings()(batch.input_ids), batch.audio_mask, front.projector(frames), frame_mask
        )
        hidden = llm.get_decoder()(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        return SalmOutput(hidden=hidden, frames=frames, frame_mask=frame_mask)


@dataclass
class SalmRecipe:
    """See recipes.base.Recipe. Dropout and SpecAugment draw from torch's global generator, which the engine seeds for
    each micro-batch."""

    module: SalmModule
    ctc_weight: float
    target_fingerprint: str | None = None
    empty_reason: str = "no_supervised_tokens"

    @property
    def prompt(self) -> Prompt:
        """How utterances become this model's rows."""
        return self.module.speech_lm.prompt()

    def prepare(self, batch: Batch, step: int) -> Batch:
        return batch

    def weight(self, prepared: Batch) -> Tensor:
        return prepared.loss_mask.sum(dtype=torch.float64)

    def loss(self, prepared: Batch, denominator: Tensor) -> tuple[Tensor, Tensor]:
        """Sums: supervised tokens, right ones, negative log-likelihood, CTC."""
        output: SalmOutput = self.module(prepared)
        supervised = prepared.loss_mask[:, 1:]
        logits = self.module.speech_lm.llm.get_output_embeddings()(output.hidden[:, :-1][supervised]).float()
        labels = prepared.input_ids[:, 1:][supervised]
        nll = nn.functional.cross_entropy(logits, labels, reduction="sum")
        ctc = self.ctc(output, prepared) if self.ctc_weight else nll.new_zeros(())
        right = (logits.argmax(-1) == labels).sum()
        sums = torch.stack([supervised.sum().double(), right.double(), nll.detach().double(), ctc.detach().double()])
        return (nll + self.ctc_weight * ctc) / denominator.to(nll.dtype), sums

    def numbers(self, sums: Tensor) -> Numbers:
        tokens, right, nll, ctc = (float(value) for value in sums)
        return Numbers(loss=(nll + self.ctc_weight * ctc) / tokens, base_loss=nll / tokens, accuracy=right / tokens)

    def ctc(self, output: SalmOutput, batch: Batch) -> Tensor:
        """Sum over rows of CTC's negative log-likelihood of the text (without its end token)."""
        facts = self.module.speech_lm.facts
        scores = self.module.ctc_head(output.frames).float().log_softmax(-1).transpose(0, 1)
        ends = torch.tensor(facts.eos_ids, device=batch.input_ids.device)
        text = batch.loss_mask & ~torch.isin(batch.input_ids, ends)
        lengths = text.sum(1)
        return nn.functional.ctc_loss(
            scores,
            batch.input_ids[text],
            output.frame_mask.sum(1),
            lengths,
            blank=facts.token_limit,
            reduction="sum",
            zero_infinity=True,
        )

    def finish(self, folder: Path) -> None:
        """Writes the speech LLM to `folder`/speech_lm in bf16 (rank zero; the full weights are gathered from all)."""
        reshard = getattr(self.module, "reshard", None)
        if reshard is not None:  # FSDP2 leaves the gathered weights in place after a validation
            reshard()
        state, writes = whole_state(self.module.speech_lm)
        if writes:
            self.module.speech_lm.save(folder / EXPORT_FOLDER, state=state)


def salm_recipe(config: SalmConfig, seed: int) -> SalmRecipe:
    """Fresh fp32 weights that depend on the seed alone. Raises TargetError without a tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = SalmModule(fresh_speech_lm(config), SpecAugment() if config.spec_augment else None)
    return SalmRecipe(module, config.ctc_weight)


def fresh_speech_lm(config: SalmConfig) -> SpeechLM:
    """Random weights in the shapes of the config, with the config's tokenizer."""
    tokenizer = load_tokenizer(Path(config.tokenizer))
    if tokenizer is None:
        raise TargetError(f"salm.tokenizer: {config.tokenizer} holds no tokenizer; `dflash-train tokenizer` makes one")
    facts = facts_of(tokenizer, config.num_mel_bins)
    encoder = ParakeetEncoder(encoder_config(config))
    revive_subsampling(encoder)
    llm = Qwen3ForCausalLM(llm_config(config, len(tokenizer), facts))
    projector = Projector(config.encoder_hidden_size, config.llm_hidden_size)
    return SpeechLM(facts, SpeechFront(Geometry(config.num_mel_bins), encoder, projector), llm, tokenizer)


def revive_subsampling(encoder: ParakeetEncoder) -> None:
    """Gives the subsampling convolutions torch's own initial values, which keep the signal's spread.

    The library draws them with the spread of a wide transformer's linear layers (initializer_range), whatever their
    fan-in: through five of them the signal shrinks below the epsilon of the first layer norm, and nothing is learnt.
    """
    for module in encoder.subsampling.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()


def facts_of(tokenizer: Any, num_mel_bins: int) -> SpeechFacts:
    """The facts of a tokenizer made by data/tokenizer.py: ids from the padding id on are never produced."""
    pad_id, mask_id = tokenizer.convert_tokens_to_ids([PAD, MASK])
    return SpeechFacts(
        prompt=PROMPT,
        audio_tag=AUDIO,
        num_mel_bins=num_mel_bins,
        pad_id=pad_id,
        eos_ids=(tokenizer.eos_token_id,),
        token_limit=pad_id,
        mask_token_id=mask_id,
    )


def encoder_config(config: SalmConfig) -> ParakeetEncoderConfig:
    """FastConformer with 8-fold subsampling."""
    return ParakeetEncoderConfig(
        hidden_size=config.encoder_hidden_size,
        num_hidden_layers=config.encoder_layers,
        num_attention_heads=config.encoder_attention_heads,
        intermediate_size=config.encoder_intermediate_size,
        num_mel_bins=config.num_mel_bins,
        subsampling_factor=8,
        subsampling_conv_channels=config.encoder_subsampling_channels,
        dropout=config.dropout,
        activation_dropout=config.dropout,
        attention_dropout=config.dropout,
        layerdrop=0.0,
        scale_input=False,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=config.encoder_hidden_size**-0.5,
    )


def llm_config(config: SalmConfig, vocab_size: int, facts: SpeechFacts) -> Qwen3Config:
    """A small Qwen3. Its only dropout is that of attention."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=config.llm_hidden_size,
        intermediate_size=config.llm_intermediate_size,
        num_hidden_layers=config.llm_layers,
        num_attention_heads=config.llm_attention_heads,
        num_key_value_heads=config.llm_key_value_heads,
        head_dim=config.llm_hidden_size // config.llm_attention_heads,
        attention_dropout=config.dropout,
        tie_word_embeddings=False,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.5 * config.llm_hidden_size**-0.5,
        pad_token_id=facts.pad_id,
        eos_token_id=facts.eos_ids[0],
        bos_token_id=None,
    )
