"""From the config as given to the config as run: derived values filled in, paths absolute, everything checked.

Reads JSON files of the target, never its weights, and imports neither torch nor transformers, so that the launcher can
ask on a login node. What is derived, and from what, is kept beside the values (`origins`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_train import config_tree
from dflash_train.config import DraftConfig, LabelSource, Recipe, TrainConfig, Variant
from dflash_train.errors import ConfigError
from dflash_train.ranges import range_errors
from dflash_train.target.facts import TargetFacts

VERSIONS_OF = ("draftyard", "torch", "transformers", "lhotse", "safetensors", "omegaconf")


@dataclass(frozen=True)
class Resolution:
    """The outcome of a check. `config` is None when there are errors."""

    config: TrainConfig | None
    errors: tuple[ConfigError, ...]
    origins: Mapping[str, str]
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The answer of `dflash-train check --json` (docs/contract.md)."""
        return {
            "ok": not self.errors,
            "errors": [{"key": e.key, "message": str(e), "nearest": e.nearest} for e in self.errors],
            "resolved": config_tree.to_tree(self.config) if self.config else None,
            "origins": dict(self.origins),
            "facts": dict(self.facts),
        }


def default_taps(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """Zero-based taps, the first at 1 and the last at L-3: round(1 + i (L-4)/(n-1)); one layer taps L//2.

    Source: DFlash specification 1.2 (z-lab, Automodel, SpecForge, ModelOpt, SGLang). Shallow targets (L < n + 3),
    which the formula gives repeated or negative ids for, are refused by `check_taps`.
    """
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    return [round(1 + i * (num_target_layers - 4) / (num_draft_layers - 1)) for i in range(num_draft_layers)]


def resolve(tree: config_tree.Tree, base: Path) -> Resolution:
    """Check `tree` and fill in what it leaves open; relative paths are relative to `base`."""
    errors = config_tree.mistakes(tree)
    if errors:
        return Resolution(None, tuple(errors), {}, {})
    config = config_tree.parse(tree)
    origins = {key: "given" if _given(tree, key) else "default" for key in config_tree.leaf_keys()}
    errors = list(range_errors(config))
    if errors:
        return Resolution(None, tuple(errors), origins, {})
    filler = _Filler(config, base, origins)
    try:
        filler.fill()
    except ConfigError as error:
        return Resolution(None, (error,), origins, {})
    return Resolution(config, (), origins, filler.facts())


@dataclass
class _Filler:
    config: TrainConfig
    base: Path
    origins: dict[str, str]

    def fill(self) -> None:
        config = self.config
        if config.max_steps < 1:
            raise ConfigError(
                f"max_steps: {config.max_steps} was given; say at which optimizer step the run is done", "max_steps"
            )
        config.data.train = self._file("data.train", config.data.train)
        for name, path in config.validation.sets.items():
            config.validation.sets[name] = self._file(f"validation.sets.{name}", path)
        manifests = [config.data.train, *config.validation.sets.values()]
        self._pin(
            "data.revision", config.data, "revision", sha256_of_files([Path(m) for m in manifests]), "the manifests"
        )
        if config.lr_scheduler.horizon is None:
            config.lr_scheduler.horizon = config.max_steps
            self.origins["lr_scheduler.horizon"] = "derived: max_steps"
        if config.recipe is Recipe.draft:
            self._fill_draft()
        else:
            config.salm.tokenizer = self._folder("salm.tokenizer", config.salm.tokenizer, "tokenizer.json")

    def _fill_draft(self) -> None:
        config, draft = self.config, self.config.draft
        config.target.path = self._folder("target.path", config.target.path)
        target = TargetFacts.read(Path(config.target.path))
        self._pin(
            "target.fingerprint",
            config.target,
            "fingerprint",
            fingerprint(Path(config.target.path)),
            "the target's files",
        )
        for key in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
            if getattr(draft, key) is None:
                setattr(draft, key, getattr(target, key))
                self.origins[f"draft.{key}"] = "derived: the target's config"
        if draft.target_layer_ids is None:
            draft.target_layer_ids = default_taps(target.num_hidden_layers, draft.num_hidden_layers)
            self.origins["draft.target_layer_ids"] = (
                f"derived: {target.num_hidden_layers} target layers, {draft.num_hidden_layers} draft layers"
            )
        check_taps(draft.target_layer_ids, target.num_hidden_layers)
        if draft.mask_token_id is None:
            if target.mask_token_id is None:
                raise ConfigError(
                    "draft.mask_token_id: the target names no mask token; give an id that its tokenizer never produces",
                    "draft.mask_token_id",
                )
            draft.mask_token_id = target.mask_token_id
            self.origins["draft.mask_token_id"] = "derived: the target's mask token"
        if not 0 <= draft.mask_token_id < target.vocab_size:
            raise ConfigError(
                f"draft.mask_token_id: {draft.mask_token_id} is not an id of the target's {target.vocab_size}",
                "draft.mask_token_id",
            )
        if target.token_limit is not None and draft.mask_token_id < target.token_limit:
            raise ConfigError(
                f"draft.mask_token_id: {draft.mask_token_id} may be a token of an answer; ids from "
                f"{target.token_limit} on never are",
                "draft.mask_token_id",
            )
        check_heads(draft)
        if draft.variant is Variant.dflash2 and target.hidden_size % draft.conv_group_size:
            raise ConfigError(
                f"draft.conv_group_size: {draft.conv_group_size} does not divide the hidden size {target.hidden_size}",
                "draft.conv_group_size",
            )
        if draft.variant is Variant.dflash2 and draft.selector_top_k > target.vocab_size:
            raise ConfigError(
                f"draft.selector_top_k: {draft.selector_top_k} candidates of a vocabulary of {target.vocab_size}",
                "draft.selector_top_k",
            )

    def facts(self) -> dict[str, Any]:
        config = self.config
        on_draft = config.recipe is Recipe.draft
        target = {"path": config.target.path, "fingerprint": config.target.fingerprint} if on_draft else None
        return {
            "recipe": config.recipe.value,
            "target_step": config.max_steps,
            "seed": config.seed,
            "target": target,
            "draft": None,  # a fresh one
            "data": {"paths": [config.data.train, *config.validation.sets.values()], "revision": config.data.revision},
            "versions": versions(),
        }

    def _absolute(self, key: str, text: str) -> Path:
        if not text:
            raise ConfigError(f"{key}: required, and not given", key)
        return (self.base / text).resolve()

    def _file(self, key: str, text: str) -> str:
        path = self._absolute(key, text)
        if not path.is_file():
            raise ConfigError(f"{key}: no such file: {path}", key)
        return str(path)

    def _folder(self, key: str, text: str, needs: str = "") -> str:
        path = self._absolute(key, text)
        if not path.is_dir():
            raise ConfigError(f"{key}: no such folder: {path}", key)
        if needs and not (path / needs).is_file():
            raise ConfigError(f"{key}: {path} holds no {needs}", key)
        return str(path)

    def _pin(self, key: str, section: Any, name: str, seen: str, of_what: str) -> None:
        given = getattr(section, name)
        if given is not None and given != seen:
            raise ConfigError(f"{key}: {given} was given, {of_what} hash to {seen}: they are not what was meant", key)
        if given is None:
            setattr(section, name, seen)
            self.origins[key] = f"derived: {of_what}"


def check_taps(taps: list[int], num_target_layers: int) -> None:
    """Raises ConfigError unless the taps are unique, ascending and of the target: servers read them in layer order."""
    key = "draft.target_layer_ids"
    if not taps or any(not 0 <= tap < num_target_layers for tap in taps):
        raise ConfigError(f"{key}: {taps}: layers of this target are 0 to {num_target_layers - 1}", key)
    if taps != sorted(set(taps)):
        raise ConfigError(
            f"{key}: {taps} must rise without repeats (servers read taps in layer order); write {sorted(set(taps))}",
            key,
        )


def check_heads(draft: DraftConfig) -> None:
    """Raises ConfigError unless query heads share key-value heads evenly and rotary positions can turn a head."""
    heads, kv_heads, head_dim = draft.num_attention_heads, draft.num_key_value_heads, draft.head_dim
    assert heads is not None
    assert kv_heads is not None
    assert head_dim is not None
    if heads % kv_heads:
        key = "draft.num_attention_heads"
        raise ConfigError(f"{key}: {heads} is not a multiple of num_key_value_heads, {kv_heads}", key)
    if head_dim % 2:
        raise ConfigError(f"draft.head_dim: {head_dim} must be even: rotary positions turn pairs", "draft.head_dim")


def _given(tree: config_tree.Tree, key: str) -> bool:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def fingerprint(folder: Path) -> str:
    """sha256 over the names and contents of every file below `folder`, hidden ones left out."""
    files = sorted(
        p for p in folder.rglob("*") if p.is_file() and not any(q.startswith(".") for q in p.relative_to(folder).parts)
    )
    return sha256_of_files(files, folder)


def sha256_of_files(files: list[Path], base: Path | None = None) -> str:
    """`sha256:<hex>` over the files' names (relative to `base`, else bare) and contents, in the order given."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        name = path.relative_to(base).as_posix() if base else path.name
        whole.update(f"{name}\0{digest}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def versions() -> dict[str, str]:
    """Versions of what the training depends on, as installed here."""
    found = {"python": platform.python_version()}
    for name in VERSIONS_OF:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def label_source_note(config: TrainConfig) -> str | None:
    """The one loud line for labels that the target did not say itself."""
    if config.recipe is Recipe.draft and config.objective.label_source is LabelSource.ground_truth:
        return (
            "label_source ground_truth: the labels are the manifest's texts; "
            "acceptance suffers where this target would say something else"
        )
    return None
