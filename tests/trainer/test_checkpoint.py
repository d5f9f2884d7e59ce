from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import assert_same_run, assert_same_state
from safetensors.torch import load_file, save_file
from torch import Tensor

from mappa_trainer import team, train
from mappa_trainer.checkpoint import latest_checkpoint, load_state, save_checkpoint
from mappa_trainer.console import Console
from mappa_trainer.errors import CheckpointError
from mappa_trainer.learner import Learner, LearningRate
from mappa_trainer.losses import ppo_clip
from mappa_trainer.models import load_model, load_tokenizer
from mappa_trainer.objective import Objective
from mappa_trainer.recipe import Recipe
from mappa_trainer.runlog import RunDirectory
from mappa_trainer.types import Sample

AGENTS = ["solver_0", "coder_0", "verifier_0"]
MAPPA = [sys.executable, "-c", "from mappa_envs.cli import main; main()"]
MakeRecipe = Callable[..., Recipe]

ANN = {"ann": "ann"}
CLIP = Objective(partial(ppo_clip, clip_low=0.2, clip_high=0.2))


def fail_in_collect(
    monkeypatch: pytest.MonkeyPatch, iteration: int, act: Callable[[], None]
) -> None:
    """Call `act` in the middle of collecting the episodes of an iteration."""
    collect = team.collect

    def disturbed(envs: Any, todo: Any, policies: Any, sampling: Any, progress: Any) -> Any:
        options = todo[0].options
        rounds = iter(range(99))

        def disturb(text: str) -> None:
            if options == {"split": "train", "task": 3 * iteration} and next(rounds) == 1:
                act()
            progress(text)

        return collect(envs, todo, policies, sampling, disturb)

    monkeypatch.setattr(team, "collect", disturbed)


def crash() -> None:
    raise OSError("power cut")


def test_the_undisturbed_run_learned_something(finished_run: Path, tiny_model: Path) -> None:
    """What the comparisons below compare is neither constant nor where it started."""
    rows = RunDirectory.open(finished_run).metrics()
    for agent in AGENTS:
        assert any(row[f"{agent}/reward_std"] > 0 for row in rows)
        assert any(row[f"{agent}/grad_norm"] > 0 for row in rows)
    checkpoint, _ = latest_checkpoint(finished_run)
    start = load_file(tiny_model / "model.safetensors")
    ends = [load_file(checkpoint / agent / "model.safetensors") for agent in AGENTS]
    for end in ends:
        assert all(not torch.equal(end[name], start[name]) for name in start)
    assert all(not torch.equal(ends[0][name], ends[1][name]) for name in start)
    assert all(not torch.equal(ends[1][name], ends[2][name]) for name in start)


def test_a_stop_and_a_resume_change_nothing(
    make_recipe: MakeRecipe, tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_in_collect(patch, 2, lambda: signal.raise_signal(signal.SIGINT))
        assert not train.start(make_recipe(), path, Console())
    assert latest_checkpoint(path)[1] == 2
    assert len(RunDirectory.open(path).metrics()) == 2
    assert train.resume(path, Console())
    assert_same_run(path, finished_run)


def test_a_crash_after_unsaved_iterations_and_a_resume_change_nothing(
    make_recipe: MakeRecipe, tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_in_collect(patch, 3, crash)
        with pytest.raises(OSError, match="power cut"):
            train.start(make_recipe(), path, Console())
    run = RunDirectory.open(path)
    assert latest_checkpoint(path)[1] == 2
    assert len(run.metrics()) == 3
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "outc')
    (path / "checkpoints" / ".partial-0004" / "solver_0").mkdir(parents=True)
    assert train.resume(path, Console())
    assert_same_run(path, finished_run)
    assert not (path / "checkpoints" / ".partial-0004").exists()


def test_a_crash_before_the_first_checkpoint_and_a_resume_change_nothing(
    make_recipe: MakeRecipe, tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_in_collect(patch, 1, crash)
        with pytest.raises(OSError, match="power cut"):
            train.start(make_recipe(), path, Console())
    assert not (path / "checkpoints").exists()
    assert len(RunDirectory.open(path).metrics()) == 1
    assert train.resume(path, Console())
    assert_same_run(path, finished_run)


def test_a_crash_while_the_first_checkpoint_is_written_and_a_resume_change_nothing(
    make_recipe: MakeRecipe, tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: crash())
        with pytest.raises(OSError, match="power cut"):
            train.start(make_recipe(), path, Console())
    assert [p.name for p in (path / "checkpoints").iterdir()] == [".partial-0002"]
    assert train.resume(path, Console())
    assert_same_run(path, finished_run)


def test_what_crashes_left_is_cleared_away_and_nothing_else(
    tiny_model: Path, tmp_path: Path
) -> None:
    root = tmp_path / "checkpoints"
    for name in (".partial-0001", "iteration-0002", "iteration-0009", "iteration-0002-good"):
        (root / name).mkdir(parents=True)
    learners = {"ann": Learner(load_model(tiny_model))}
    save_checkpoint(tmp_path, 5, learners, load_tokenizer(tiny_model), keep=1, players=ANN)
    found = sorted(path.name for path in root.iterdir())
    assert found == ["iteration-0002-good", "iteration-0005", "iteration-0009"]


@pytest.mark.slow  # a process that imports all; the crashes above are as sudden
def test_a_killed_process_and_a_resume_change_nothing(
    recipe_file: Path, tmp_path: Path, finished_run: Path
) -> None:
    path = tmp_path / "run"
    process = subprocess.Popen(
        [*MAPPA, "train", str(recipe_file), "--out", str(path)],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        saved = path / "checkpoints" / "iteration-0002"
        while not saved.exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert saved.exists()
    assert train.resume(path, Console())
    assert_same_run(path, finished_run)


def test_resuming_a_finished_run_repeats_nothing(finished_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run, path)
    assert train.resume(path, Console())
    assert_same_run(path, finished_run)


def test_old_checkpoints_are_dropped_and_new_ones_kept(
    finished_run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    found = sorted(path.name for path in (finished_run / "checkpoints").iterdir())
    assert found == ["iteration-0002", "iteration-0004"]
    learners = {"ann": Learner(load_model(tiny_model))}
    for iteration in (1, 2, 10):
        save_checkpoint(
            tmp_path, iteration, learners, load_tokenizer(tiny_model), keep=2, players=ANN
        )
    found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert found == ["iteration-0002", "iteration-0010"]
    assert latest_checkpoint(tmp_path) == (tmp_path / "checkpoints" / "iteration-0010", 10)


def test_ten_thousand_iterations_come_after_nine_thousand(tmp_path: Path) -> None:
    for name in ("iteration-9999", "iteration-10000"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "complete.json").write_text("{}")
    assert latest_checkpoint(tmp_path)[1] == 10000


def test_saving_again_replaces_the_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    learners = {"ann": Learner(load_model(tiny_model), precision="float32")}
    tokenizer = load_tokenizer(tiny_model)
    first = save_checkpoint(tmp_path, 1, learners, tokenizer, keep=1, players=ANN)
    (first / "stray").write_text("x")
    sample = Sample((5, 6), (7, 8), torch.tensor([-5.0, -5.0]), torch.tensor([1.0, -1.0]))
    learners["ann"].update([sample], CLIP)
    assert save_checkpoint(tmp_path, 1, learners, tokenizer, keep=1, players=ANN) == first
    assert not (first / "stray").exists()
    assert json.loads((first / "complete.json").read_text()) == {"iteration": 1, "agents": ANN}
    saved = load_file(first / "ann" / "model.safetensors")
    assert torch.equal(saved["model.norm.weight"], learners["ann"].model.model.norm.weight)


@pytest.mark.parametrize("writer", ["save_pretrained", "save_state"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("write")])
def test_a_full_disk_is_said_and_leaves_the_checkpoint_before(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    writer: str,
    error: Exception,
) -> None:
    learners, tokenizer = {"ann": Learner(load_model(tiny_model))}, load_tokenizer(tiny_model)
    save_checkpoint(tmp_path, 1, learners, tokenizer, keep=1, players=ANN)

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(learners["ann"], writer, full)
    with pytest.raises(CheckpointError, match=r"iteration-0002: .* cannot be written: .* GB are"):
        save_checkpoint(tmp_path, 2, learners, tokenizer, keep=1, players=ANN)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iteration-0001"]


def test_optimiser_state_comes_back(tiny_model: Path, tmp_path: Path) -> None:
    learner = Learner(load_model(tiny_model), learning_rate=LearningRate(1e-3), precision="float32")
    sample = Sample((5, 6), (7, 8), torch.tensor([-5.0, -5.0]), torch.tensor([1.0, -1.0]))
    for _ in range(3):
        learner.update([sample], CLIP)
    checkpoint = save_checkpoint(tmp_path, 3, {"ann": learner}, load_tokenizer(tiny_model), 1, ANN)
    again = Learner(
        load_model(checkpoint / "ann"), learning_rate=LearningRate(1e-3), precision="float32"
    )
    load_state(checkpoint, "ann", again)
    assert again.step == 3
    assert_same_state(again.state(), learner.state())
    assert float(again.state()["model.norm.weight.exp_avg"].abs().max()) > 0
    assert float(again.state()["model.norm.weight.step"]) == 3
    assert learner.update([sample], CLIP) == again.update([sample], CLIP)
    assert_same_state(again.model.state_dict(), learner.model.state_dict())


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        ([], "no complete checkpoint, none; restore one"),
        (["."], "no complete checkpoint, none; restore one"),
        (["iteration-0002", ".partial-0003"], r"only incomplete ones \(.partial-0003, iteration"),
    ],
)
def test_without_a_complete_checkpoint_there_is_none(
    tmp_path: Path, folders: list[str], words: str
) -> None:
    for folder in folders:
        (tmp_path / "checkpoints" / folder).mkdir(parents=True, exist_ok=True)
    with pytest.raises(CheckpointError, match=words):
        latest_checkpoint(tmp_path)


def test_an_incomplete_checkpoint_is_passed_over(finished_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(finished_run, path)
    (path / "checkpoints" / "iteration-0004" / "complete.json").unlink()
    (path / "checkpoints" / ".partial-0005").mkdir()
    assert latest_checkpoint(path)[1] == 2


@pytest.mark.parametrize("content", [b"", b"not a state", b"\x10\0\0\0\0\0\0\0cut short", None])
def test_a_damaged_state_is_one_line(
    tiny_model: Path, tmp_path: Path, content: bytes | None
) -> None:
    checkpoint = tmp_path / "iteration-0004"
    folder = checkpoint / "state" / "solver_0"
    if content is not None:
        folder.mkdir(parents=True)
        (folder / "shard-00001-model-00001-of-00001.safetensors").write_bytes(content)
    learner = Learner(load_model(tiny_model))
    with pytest.raises(CheckpointError) as caught:
        load_state(checkpoint, "solver_0", learner)
    assert str(caught.value).startswith(f"{folder}: the optimiser state cannot be loaded: ")
    assert "\n" not in str(caught.value)


def half(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(tensors.items())[::2])


def of_another_shape(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.cat([tensor, tensor]) for name, tensor in tensors.items()}


@pytest.mark.parametrize("damage", [half, of_another_shape])
def test_a_state_that_is_half_there_or_of_another_model_is_one_line(
    finished_run: Path, tiny_model: Path, tmp_path: Path, damage: Callable[..., dict[str, Tensor]]
) -> None:
    folder = tmp_path / "state" / "solver_0"
    folder.mkdir(parents=True)
    (path,) = (latest_checkpoint(finished_run)[0] / "state" / "solver_0").iterdir()
    save_file(damage(load_file(path)), folder / path.name)
    learner = Learner(load_model(tiny_model))
    with pytest.raises(CheckpointError, match=r"ValueError: .* is missing or of") as caught:
        load_state(tmp_path, "solver_0", learner)
    assert "\n" not in str(caught.value)
    assert learner.step == 0


def test_a_state_of_which_a_file_is_cut_is_one_line(
    finished_run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "state" / "solver_0"
    shutil.copytree(latest_checkpoint(finished_run)[0] / "state" / "solver_0", folder)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="cannot be loaded") as caught:
        load_state(tmp_path, "solver_0", Learner(load_model(tiny_model)))
    assert "\n" not in str(caught.value)


PLAIN = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
ids = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is 2 + 3?"}],
    add_generation_prompt=True,
    return_tensors="pt",
    return_dict=True,
)
done = model.generate(**ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
assert not [name for name in sys.modules if name.startswith("mappa")]
print(model.dtype, done[0, ids["input_ids"].shape[1]:].tolist())
"""


def test_an_agent_names_a_model_of_plain_transformers(finished_run: Path) -> None:
    folder = latest_checkpoint(finished_run)[0] / "coder_0"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "auto_map" not in config
    assert "mappa" not in (folder / "config.json").read_text()
    assert "mappa" not in (folder / "generation_config.json").read_text()


@pytest.mark.slow
def test_plain_transformers_loads_an_agent_and_generates(finished_run: Path) -> None:
    folder = latest_checkpoint(finished_run)[0] / "coder_0"
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    dtype, _, ids = done.stdout.strip().partition(" ")
    assert dtype == "torch.float32"
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 2 + 3?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    expected = model.generate(**prompt, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert json.loads(ids) == expected[0, prompt["input_ids"].shape[1] :].tolist()
