"""A trainer without torch that keeps docs/contract.md to the letter, so that the launcher is tested on real processes.

`python -m fake_trainer check --json -` and `python -m fake_trainer train <run>/resolved.yaml`. A step is a sleep; a
checkpoint is two small files and a manifest. The keys under `fault` make it misbehave as real trainers do.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import platform
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, Any] = {
    "max_steps": 0,
    "seed": 0,
    "step_seconds": 0.02,
    "target": {"path": ""},
    "optimizer": {"lr": 6e-4},
    "checkpoint": {"interval": 0},
    "validation": {"interval": 0},
    "fault": {
        "crash_at": 0,  # exit 9 when this step is done, in every link that gets there; 0: never
        "crash_once": 0,  # the same, in the first link that gets there only
        "deaf": False,  # ignores the deadline, the stop file and every signal: only the wall-time limit ends it
        "nan_from": 0,  # loss is null from this step on
        "bfloat16_from": 0,  # the weight's dtype changes in checkpoints from this step on
        "no_manifest": False,  # saves are never complete
    },
}


def sha256(text: str | bytes) -> str:
    return "sha256:" + hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def merge(
    defaults: dict[str, Any], given: dict[str, Any], prefix: str, errors: list[dict[str, Any]], origins: dict[str, str]
) -> dict:
    """The defaults with `given` over them; unknown keys and wrong types go to `errors`, their origins to `origins`."""
    for key in given.keys() - defaults.keys():
        near = difflib.get_close_matches(key, defaults, n=1, cutoff=0.5)
        nearest = prefix + near[0] if near else None
        errors.append({"key": prefix + key, "message": f"unknown key {prefix + key!r}", "nearest": nearest})
    merged: dict[str, Any] = {}
    for key, default in defaults.items():
        value, path = given.get(key, default), prefix + key
        if isinstance(default, dict):
            if isinstance(value, dict):
                merged[key] = merge(default, value if key in given else {}, path + ".", errors, origins)
                continue
            errors.append({"key": path, "message": f"expected a group of keys, got {value!r}", "nearest": None})
            continue
        number = isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool)
        if type(value) is not type(default) and not number:
            message = f"expected {type(default).__name__}, got {value!r}"
            errors.append({"key": path, "message": message, "nearest": None})
        merged[key] = value
        origins[path] = "given" if key in given else "default"
    return merged


def check() -> int:
    errors: list[dict[str, Any]] = []
    origins: dict[str, str] = {}
    resolved = merge(DEFAULTS, json.load(sys.stdin), "", errors, origins)
    if not errors and resolved["max_steps"] < 1:
        errors.append({"key": "max_steps", "message": "max_steps must be at least 1", "nearest": None})
    facts: dict[str, Any] = {}
    if not errors:
        target = Path(resolved["target"]["path"] or __file__).resolve()
        if not target.is_file():
            errors.append({"key": "target.path", "message": f"no such file: {target}", "nearest": None})
        else:
            resolved["target"]["path"] = str(target)
            origins["target.path"] = "derived: target.path and the working directory"
            facts = {
                "target_step": resolved["max_steps"],
                "seed": resolved["seed"],
                "target": {"path": str(target), "fingerprint": sha256(target.read_bytes())},
                "draft": None,
                "data": {"paths": [], "revision": sha256("")},
                "versions": {"python": platform.python_version()},
            }
    print(json.dumps({"ok": not errors, "errors": errors, "resolved": resolved, "origins": origins, "facts": facts}))
    return 3 if errors else 0


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def save(run: Path, config: dict[str, Any], step: int) -> None:
    folder = run / "checkpoints" / f"step={step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    shard = b"\x00" * 64 + step.to_bytes(8, "little")
    (folder / "__0_0.distcp").write_bytes(shard)
    (folder / ".metadata").write_bytes(b"metadata")
    if config["fault"]["no_manifest"]:
        return
    bfloat16_from = config["fault"]["bfloat16_from"]
    dtype = "bfloat16" if bfloat16_from and step >= bfloat16_from else "float32"
    manifest = {
        "version": 1,
        "step": step,
        "created": time.time(),
        "target_fingerprint": sha256(Path(config["target"]["path"]).read_bytes()),
        "config_sha256": sha256((run / "resolved.yaml").read_bytes()),
        "files": {"__0_0.distcp": len(shard), ".metadata": 8},
        "tensors": {
            "model.weight": {"dtype": dtype, "shape": [4, 4]},
            "optimizer.step": {"dtype": "float32", "shape": []},
        },
    }
    write_atomically(folder / "manifest.json", json.dumps(manifest))


def newest_step(run: Path) -> int:
    return max(
        (int(m.parent.name.removeprefix("step=")) for m in run.glob("checkpoints/step=*/manifest.json")), default=0
    )


def rendezvous(stack: ExitStack, rank: int, world: int) -> None:
    """Rank zero waits for all the others; they live until it closes. Proves MASTER_ADDR, MASTER_PORT."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        server = stack.enter_context(socket.create_server(("", port), backlog=world))
        server.settimeout(60)
        for _ in range(world - 1):
            stack.enter_context(server.accept()[0])
        return
    end = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=5)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    with connection:
        connection.settimeout(None)
        connection.recv(1)


def metrics_line(step: int, link: int, config: dict[str, Any], seconds: float) -> str:
    nan_from = config["fault"]["nan_from"]
    loss = None if nan_from and step >= nan_from else 5.0 / step
    line = {
        "step": step, "link": link, "time": time.time(), "loss": loss, "base_loss": loss, "selector_loss": 0.0,
        "grad_norm": None if loss is None else 1.0, "lr": config["optimizer"]["lr"], "step_seconds": seconds,
        "data_seconds": 0.0, "tokens": 128, "valid_blocks": 16, "accept_len": 1.5, "skipped": loss is None,
        "skip_reason": "non-finite loss" if loss is None else None, "peak_bytes": 0,
    }  # fmt: skip
    return json.dumps(line) + "\n"


def train(path: Path) -> int:
    # The launcher writes resolved.yaml as JSON-compatible YAML; a real trainer reads it with its YAML library.
    from omegaconf import OmegaConf

    config: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    run, link = Path(os.environ["LAUNCH_RUN_DIR"]), int(os.environ["LAUNCH_LINK"])
    deadline, target_step = float(os.environ["LAUNCH_DEADLINE"]), int(os.environ["LAUNCH_TARGET_STEP"])
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    fault = config["fault"]
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN if fault["deaf"] else lambda n, _: told.append(n))
    print(
        f"fake trainer: rank {rank} of {world} link {link} pid {os.getpid()} from step {newest_step(run)}", flush=True
    )
    with ExitStack() as stack:
        if world > 1:
            rendezvous(stack, rank, world)
        if rank != 0:
            return 0
        step = first = newest_step(run)
        saved = step
        with (run / "metrics.jsonl").open("a") as metrics:
            while step < target_step:
                time.sleep(config["step_seconds"])
                step += 1
                metrics.write(metrics_line(step, link, config, config["step_seconds"]))
                every = config["validation"]["interval"]
                if every and step % every == 0:
                    sets = {"held_out": {"val_loss": 1.0, "val_accept_len": 1.0, "val_acc": 0.5, "valid_anchors": 7}}
                    line = {"step": step, "link": link, "time": time.time(), "validation": sets}
                    metrics.write(json.dumps(line) + "\n")
                metrics.flush()
                if step == fault["crash_at"] or (step == fault["crash_once"] and not (run / "crashed_once").exists()):
                    (run / "crashed_once").touch()
                    print(f"fake trainer: crash as asked at step {step}", file=sys.stderr, flush=True)
                    return 9
                if config["checkpoint"]["interval"] and step % config["checkpoint"]["interval"] == 0:
                    save(run, config, step)
                    saved = step
                if not fault["deaf"] and (told or time.time() >= deadline or (run / "STOP").exists()):
                    break
        if saved != step or not (run / f"checkpoints/step={step:08d}/manifest.json").exists():
            save(run, config, step)
        # Python gives its handlers back at its end; a signal then would kill a trainer that has done all it should.
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        print(f"fake trainer: link {link} ends at step {step} after {step - first} steps, signals {told}", flush=True)
        return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["check", "--json", "-"]:
        sys.exit(check())
    if len(sys.argv) == 3 and sys.argv[1] == "train":
        sys.exit(train(Path(sys.argv[2])))
    sys.exit("usage: python -m fake_trainer check --json - | train RESOLVED_YAML")
