"""A small BPE tokenizer of one's own texts: lower-cased words, few ids, exact round trips.

Ids: 0 ends an answer; then letters and merges; at the end what is never produced (padding, prompt tags, unknown, mask),
so that `token_limit` keeps it out of every argmax.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

EOS, PAD, UNKNOWN, BOS, AUDIO, TEXT, MASK = "<eos>", "<pad>", "<unk>", "<bos>", "<audio>", "<text>", "<mask>"
PLACEHOLDERS = (PAD, UNKNOWN, BOS, AUDIO, TEXT, MASK)
ALPHABET = list("abcdefghijklmnopqrstuvwxyz'")
PROMPT = f"{BOS}{AUDIO}{TEXT}"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """BPE with `vocab_size` ids at most, the placeholders included; every letter is known whatever the texts hold."""
    tokenizer = Tokenizer(BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(PLACEHOLDERS),
        initial_alphabet=[*ALPHABET, "▁"],
        special_tokens=[EOS],
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in PLACEHOLDERS])
    tokenizer = with_placeholders_in_model(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        bos_token=BOS,
        mask_token=MASK,
        additional_special_tokens=[AUDIO, TEXT],
        clean_up_tokenization_spaces=False,
    )


def with_placeholders_in_model(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with the placeholders in its model's vocabulary too, under the ids that they have.

    Without UNKNOWN there, a letter that is not in the alphabet is an exception instead of an id. The trainer itself
    would number them first, among the tokens that an answer may hold.
    """
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"].update({token: tokenizer.token_to_id(token) for token in PLACEHOLDERS})
    return Tokenizer.from_str(json.dumps(state))


def write_tokenizer(texts: Iterable[str], vocab_size: int, folder: Path) -> int:
    """Trains and saves a Hugging Face tokenizer folder; returns its number of ids."""
    tokenizer = train_tokenizer(texts, vocab_size)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)
