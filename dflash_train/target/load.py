"""The target of a folder, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_train.data.prompt import Prompt
from dflash_train.errors import TargetError
from dflash_train.target.causal_lm import CausalLMTarget, load_causal_lm_target
from dflash_train.target.speech_lm import DESCRIPTION, SpeechLM, prompt_of, read_facts
from dflash_train.target.strict import load_tokenizer


@dataclass(frozen=True)
class LoadedTarget:
    """A frozen target and how utterances become its rows; prompt is None for a text LLM."""

    target: CausalLMTarget
    prompt: Prompt | None


def load_target(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedTarget:
    """Loads a SpeechLM folder or a Hugging Face causal LM strictly, on the CPU. Raises TargetError."""
    if (folder / DESCRIPTION).is_file():
        speech_lm = SpeechLM.from_folder(folder, dtype)
        return LoadedTarget(speech_lm.target(), speech_lm.prompt())
    return LoadedTarget(load_causal_lm_target(folder, dtype), None)


def load_prompt(folder: Path) -> Prompt:
    """The prompt of a SpeechLM folder without its weights. Raises TargetError."""
    tokenizer = load_tokenizer(folder / "llm")
    if tokenizer is None:
        raise TargetError(f"{folder / 'llm'} has no tokenizer")
    return prompt_of(read_facts(folder), tokenizer)
