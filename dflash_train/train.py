"""One link of a run, put together: config, target, data, recipe, sharding, loop."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_train import config_tree
from dflash_train.config import Precision, Recipe, TrainConfig
from dflash_train.data.loader import EvalData, Share, TrainData, max_supervised_of_a_row
from dflash_train.data.manifest import Manifest, open_manifest
from dflash_train.data.prompt import Prompt
from dflash_train.engine.loop import Training
from dflash_train.engine.ops_te import choose_ops
from dflash_train.engine.parallel import DTYPES, shard
from dflash_train.engine.processes import Processes, process_group
from dflash_train.engine.stop import Assignment, StopWatch
from dflash_train.errors import ConfigError
from dflash_train.recipes.base import Recipe as RecipeProtocol
from dflash_train.recipes.draft import draft_recipe
from dflash_train.recipes.salm import salm_recipe
from dflash_train.resolve import label_source_note, resolve
from dflash_train.target.load import load_target

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Built:
    """A recipe on its device, how its rows are made, and the precision of its forward pass."""

    recipe: RecipeProtocol[Any]
    prompt: Prompt
    precision: Precision


def train(config_path: Path, run_dir: Path | None) -> int:
    """Train one link of the run whose resolved config is `config_path`; returns the step reached.

    Raises DFlashError for everything that the user can mend.
    """
    assignment = Assignment.read(run_dir)
    answer = resolve(config_tree.load_yaml(config_path), Path.cwd())
    for error in answer.errors:
        raise error
    assert answer.config is not None
    config = answer.config
    config_sha256 = "sha256:" + hashlib.sha256(config_path.read_bytes()).hexdigest()
    watch = StopWatch(assignment)
    watch.listen()
    try:
        assignment.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{assignment.run_dir}: cannot be the run directory: {error.strerror}") from None
    with process_group() as processes:
        if processes.is_zero:
            log.info("link %d, rank 0 of %d on %s, run directory %s", assignment.link, processes.world_size,
                     processes.device, assignment.run_dir)  # fmt: skip
            if note := label_source_note(config):
                log.warning(note)
        training_set = open_manifest(Path(config.data.train))
        built = build(config, training_set, processes)
        shard(built.recipe.module, processes.mesh, built.precision)
        share = Share(config.data.batch_size, config.data.accumulation, processes.rank, processes.world_size)
        manifests = {name: open_manifest(Path(path)) for name, path in config.validation.sets.items()}
        for manifest in manifests.values():
            max_supervised_of_a_row(manifest, built.prompt)  # a row that cannot be used is found now, not in an hour
        sets = {name: EvalData(manifest, built.prompt, config.data.batch_size) for name, manifest in manifests.items()}
        order_seed = config.seed if config.data.shuffle else None
        data = TrainData(training_set, built.prompt, share, order_seed, config.data.num_workers)
        done = Training(config, config_sha256, built.recipe, data, sets, processes, assignment).run(watch)
    watch.ignore()
    return done


def build(config: TrainConfig, training_set: Manifest, processes: Processes) -> Built:
    """The recipe that the config names."""
    if config.recipe is Recipe.salm:
        salm = salm_recipe(config.salm, config.seed)
        salm.module.to(processes.device)
        max_supervised_of_a_row(training_set, salm.prompt)  # likewise
        return Built(salm, salm.prompt, Precision.float32)
    loaded = load_target(Path(config.target.path), DTYPES[config.target.precision])
    if loaded.prompt is None:
        raise ConfigError(
            f"target.path: {config.target.path} is a text LLM; drafts are trained on speech here", "target.path"
        )
    loaded.target.to(processes.device)
    slots = max_supervised_of_a_row(training_set, loaded.prompt)
    ops = choose_ops(processes.device, config.draft.precision)
    recipe = draft_recipe(config, loaded.target, slots, ops)
    if processes.is_zero:
        log.info("target %s: %d layers, taps %s; %s draft of %d layers (%s), block %d, %d anchor slots "
                 "a row",
                 config.target.path, loaded.target.num_layers, config.draft.target_layer_ids,
                 config.draft.variant.value, config.draft.num_hidden_layers, ops.name,
                 config.draft.block_size, recipe.rule.num_slots)  # fmt: skip
    return Built(recipe, loaded.prompt, config.draft.precision)
