"""The speech verbs of `dflash-train`: a tokenizer, composed utterances, a word error rate. torch is imported inside."""

from __future__ import annotations

import json
from pathlib import Path

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


def token_range(_context: click.Context, _option: click.Parameter, value: str) -> tuple[int, int]:
    """ "15-40" -> (15, 40)."""
    low, dash, high = value.partition("-")
    if not (dash and low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
        raise click.BadParameter(f"{value!r}: write LOW-HIGH, for example 15-40")
    return int(low), int(high)


@click.command()
@click.argument("clips", type=FILE)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--split", default="train", show_default=True, help="Only texts of this split are read.")
@click.option("--vocab", default=192, show_default=True, type=click.IntRange(64), help="Ids at most.")
def tokenizer(clips: Path, out: Path, split: str, vocab: int) -> None:
    """Train a small BPE tokenizer on the texts of the manifest CLIPS; OUT is a Hugging Face tokenizer folder."""
    from dflash_train.data.manifest import open_manifest
    from dflash_train.data.tokenizer import write_tokenizer
    from dflash_train.errors import DataError

    texts = [u.text for u in open_manifest(clips).utterances() if u.split == split]
    if not texts:
        raise DataError(f"{clips}: no cut of the split {split!r}")
    click.echo(f"{out}: {write_tokenizer(texts, vocab, out)} ids from {len(texts)} texts")


@click.command()
@click.argument("clips", type=FILE)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--count", required=True, type=click.IntRange(1), help="Utterances to make.")
@click.option("--split", default="train", show_default=True, help="Only clips of this split are used.")
@click.option("--tokens", default="15-40", show_default=True, callback=token_range, help="Length of a text, LOW-HIGH.")
@click.option("--seed", default=0, show_default=True, help="Utterance i depends on the seed, the split and i alone.")
@click.option("--tokenizer", "tokenizer_folder", required=True, type=FOLDER, help="Counts the tokens.")
@click.option("--exclude", multiple=True, type=FILE, help="A manifest whose texts are not made again.")
@click.option("--rising", is_flag=True, help="A curriculum: short rows first (data.shuffle: false).")
def compose(
    clips: Path,
    out: Path,
    count: int,
    split: str,
    tokens: tuple[int, int],
    seed: int,
    tokenizer_folder: Path,
    exclude: tuple[Path, ...],
    rising: bool,
) -> None:
    """Splice clips of the manifest CLIPS into utterances with exact texts; OUT is a manifest (.jsonl or .jsonl.gz)."""
    from dflash_train.data.compose import Composition
    from dflash_train.data.compose import compose as make
    from dflash_train.data.manifest import open_manifest
    from dflash_train.errors import DataError
    from dflash_train.observe.bars import bars
    from dflash_train.target.strict import load_tokenizer

    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise click.BadParameter(f"{out}: the name must end in .jsonl or .jsonl.gz")
    counter = load_tokenizer(tokenizer_folder)
    if counter is None:
        raise DataError(f"{tokenizer_folder} holds no tokenizer")
    known = frozenset(u.text for path in exclude for u in open_manifest(path).utterances())
    plan = Composition(count=count, split=split, tokens=tokens, seed=seed, excluded=known, rising=rising)
    with bars() as bar:
        seen = bar(f"composing {out.name}", count)
        used = make(clips, out, plan, lambda text: len(counter.encode(text, add_special_tokens=False)), seen)
    click.echo(f"{out}: {count} utterances of {used} clips")


@click.command()
@click.argument("target", type=FOLDER)
@click.argument("manifests", type=FILE, nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1), help="Utterances of each manifest at most.")
@click.option("--max-new-tokens", default=128, show_default=True, type=click.IntRange(1))
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--show", is_flag=True, help="Print each transcript that is not exact.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a manifest.")
def wer(
    target: Path,
    manifests: tuple[Path, ...],
    limit: int | None,
    max_new_tokens: int,
    device: str,
    show: bool,
    as_json: bool,
) -> None:
    """Word error rate of the speech LLM in the folder TARGET on each of MANIFESTS, greedy, in fp32."""
    from dataclasses import asdict

    from dflash_train.data.manifest import open_manifest
    from dflash_train.errors import TargetError
    from dflash_train.evaluate.speech import transcribe, word_errors
    from dflash_train.observe.bars import bars
    from dflash_train.target.load import load_target

    loaded = load_target(target)
    if loaded.prompt is None:
        raise TargetError(f"{target} is a text LLM: it has no word error rate")
    loaded.target.to(device)
    for path in manifests:
        manifest, found = open_manifest(path), []
        with bars() as bar:
            seen = bar(f"transcribing {path.name}", min(limit or len(manifest), len(manifest)))
            for transcript in transcribe(loaded.target, loaded.prompt, manifest, max_new_tokens, limit):
                found.append(transcript)
                seen()
        errors = word_errors([t.reference for t in found], [t.hypothesis for t in found])
        if as_json:
            click.echo(json.dumps({"manifest": str(path), "rate": errors.rate, **asdict(errors)}))
            continue
        kinds = f"{errors.insertions} insertions, {errors.deletions} deletions, {errors.substitutions} substitutions"
        empty = f"{errors.empty} of {errors.utterances} empty"
        click.echo(f"{path}: WER {100 * errors.rate:.1f} % ({kinds} of {errors.words} words; {empty})")
        for transcript in found if show else []:
            if transcript.reference != transcript.hypothesis:
                click.echo(f"  {transcript.id}\n    said  {transcript.reference}\n    heard {transcript.hypothesis}")
