from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest
import ranks
import torch
from ranks import CLIP, SCENARIOS, Found, make_learner, make_pairs, make_samples
from safetensors.torch import save_file
from torch import Tensor

from mappa_trainer.learner import Learner
from mappa_trainer.sharding import Ranks, join_ranks, load_tensors

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = [name for name in SCENARIOS if name != "bfloat16"]


def assert_close(weights: dict[str, Tensor], others: dict[str, Tensor], relative: float) -> None:
    assert weights.keys() == others.keys()
    for name, other in others.items():
        difference = float((weights[name] - other).norm())
        assert difference <= 1e-8 + relative * float(other.norm()), name


def assert_close_outcomes(outcome: ranks.Outcome, other: ranks.Outcome) -> None:
    for mine, theirs in zip(outcome.logprobs, other.logprobs, strict=True):
        for values, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(values, wanted, atol=1e-6, rtol=0)
    for metrics, wanted in zip(outcome.metrics, other.metrics, strict=True):
        assert astuple(metrics) == pytest.approx(astuple(wanted), rel=1e-5, abs=1e-6)
    assert_close(outcome.weights, other.weights, 1e-6)


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Where one process saved a learner after three steps, and where two ranks did."""
    root = tmp_path_factory.mktemp("saved")
    learner = make_learner(tiny_model)
    ranks.take_steps(learner, SCENARIOS["even"])
    ranks.save(learner, root / "alone", tiny_model)
    return root / "alone", root / "two"


@pytest.fixture(scope="module")
def found(tiny_model: Path, folders: tuple[Path, Path]) -> list[Found]:
    """What two ranks found."""
    return ranks.launch(ranks.rank_main, tiny_model, *folders)


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> dict[str, ranks.Outcome]:
    """What one process found."""
    return ranks.play(tiny_model)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_do_what_one_process_does(
    name: str, found: list[Found], alone: dict[str, ranks.Outcome]
) -> None:
    assert_close_outcomes(found[0].outcomes[name], alone[name])
    assert found[1].outcomes[name].logprobs[-1][0].equal(found[0].outcomes[name].logprobs[-1][0])
    assert found[1].outcomes[name].metrics == found[0].outcomes[name].metrics
    assert found[1].outcomes[name].weights == {}


@pytest.mark.slow
def test_the_ratio_is_exactly_one_on_ranks_too(found: list[Found]) -> None:
    for outcome in found[0].outcomes.values():
        assert [metrics.ratio_max_deviation for metrics in outcome.metrics] == [0.0] * len(
            outcome.metrics
        )


@pytest.mark.slow
def test_bfloat16_is_nearly_the_same_on_two_ranks(
    found: list[Found], alone: dict[str, ranks.Outcome], tiny_model: Path
) -> None:
    outcome, other = found[0].outcomes["bfloat16"], alone["bfloat16"]
    exact = make_learner(tiny_model).logprobs(make_pairs(SCENARIOS["bfloat16"].steps[0], 0))
    for values, wanted, single in zip(outcome.logprobs[0], other.logprobs[0], exact, strict=True):
        torch.testing.assert_close(values, wanted, atol=0.02, rtol=0)
        assert not torch.equal(values, single)
    assert outcome.metrics[0].grad_norm == pytest.approx(other.metrics[0].grad_norm, rel=0.01)
    assert {value.dtype for value in outcome.weights.values()} == {torch.float32}


@pytest.mark.slow
def test_a_number_that_is_none_on_one_rank_stops_all(found: list[Found]) -> None:
    for one in found:
        assert one.error.startswith("optimiser step 0: the gradient norm is nan on 2 samples")


@pytest.mark.slow
def test_an_adapter_and_the_base_below_it_share_sharded_weights(
    found: list[Found], tiny_model: Path
) -> None:
    for mine, theirs in zip(found[1].reference, ranks.reference(tiny_model), strict=True):
        for values, wanted in zip(mine, theirs, strict=True):
            torch.testing.assert_close(values, wanted, atol=1e-6, rtol=0)


@pytest.mark.slow
def test_what_one_process_saved_goes_on_on_two_ranks(
    found: list[Found], folders: tuple[Path, Path]
) -> None:
    assert_close_outcomes(found[0].resumed, ranks.go_on(folders[0]))


@pytest.mark.slow
def test_what_two_ranks_saved_goes_on_in_one_process(
    found: list[Found], folders: tuple[Path, Path]
) -> None:
    saved_alone, saved_by_two = folders
    assert len(list((saved_by_two / "state").iterdir())) == 2
    assert_close_outcomes(ranks.go_on(saved_by_two), ranks.go_on(saved_alone))


@pytest.mark.slow
def test_a_missing_part_of_a_state_is_noticed(
    found: list[Found], folders: tuple[Path, Path], tmp_path: Path
) -> None:
    files = sorted((folders[1] / "state").iterdir())
    for file in files:
        kept = tmp_path / file.stem / "state"
        kept.mkdir(parents=True)
        (kept / file.name).write_bytes(file.read_bytes())
        with pytest.raises(ValueError, match=r"is missing or of another shape|is incomplete"):
            make_learner(folders[1]).load_state(kept)


def test_a_tensor_of_which_a_part_is_missing_is_refused(tmp_path: Path) -> None:
    """The file of the second of two ranks, without that of the first."""
    place = json.dumps({"moment": {"saved_offsets": [2, 0]}})
    save_file(
        {"moment": torch.ones(2, 3)}, tmp_path / "2.safetensors", {"DCP_SHARDING_INFO": place}
    )
    moment = torch.zeros(4, 3)
    with pytest.raises(ValueError, match="moment is incomplete"):
        load_tensors(tmp_path, {"moment": moment}, Ranks())
    assert not moment.any()


@pytest.mark.slow
def test_a_rank_whose_process_ends_takes_the_others_with_it(tiny_model: Path) -> None:
    errors = sorted(ranks.errors_of("fail_apart", str(tiny_model)), key=len)
    assert "ValueError: no loss for this one" in errors[0]
    assert "of 2: an exchange with the other ranks failed" in errors[1]
    assert "onnection" in errors[1]  # closed or reset; not the end of ten minutes


@pytest.mark.slow
def test_a_rank_that_is_silent_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    waiting, silent = ranks.launch(ranks.be_silent, tmp_path / "done")
    assert waiting.startswith("rank 0 of 2: an exchange with the other ranks failed")
    assert "was silent for 15 s" in waiting
    assert silent == "no error"


@dataclass(frozen=True)
class Apart(Ranks):
    """A rank of a group that is not there: sums are its own, and all others have three passes."""

    place: int = 0
    others: int = 0

    @property
    def size(self) -> int:
        return 2

    @property
    def rank(self) -> int:
        return self.place

    def max(self, values: Tensor) -> Tensor:
        return values.clamp(min=self.others)


def gradients(learner: Learner) -> list[Tensor]:
    return [p.grad for p in learner.model.parameters() if p.grad is not None]


def update_apart(model: Path, group: Ranks, shapes: list[tuple[int, int]]) -> Learner:
    learner = make_learner(model, group, max_grad_norm=1e9)
    pairs = make_pairs(shapes, 0)
    old = make_learner(model).logprobs(pairs)
    learner.update(make_samples(pairs, old, 0), CLIP)
    return learner


def test_the_gradients_of_ranks_add_up_to_that_of_the_whole_step(tiny_model: Path) -> None:
    shapes = [(5, 7), (30, 1), (12, 12), (3, 20)]
    whole = gradients(update_apart(tiny_model, Ranks(), shapes))
    parts = [gradients(update_apart(tiny_model, Apart(place=rank), shapes)) for rank in range(2)]
    for one, other, wanted in zip(*parts, whole, strict=True):
        assert not torch.equal(one, wanted)
        torch.testing.assert_close(one + other, wanted, atol=1e-6, rtol=1e-4)


def test_a_rank_without_work_makes_as_many_passes_and_adds_nothing(tiny_model: Path) -> None:
    learner = make_learner(tiny_model, Apart(place=1, others=3))
    passes: list[bool] = []
    learner.likelihood.scorer.register_forward_hook(
        lambda *_: passes.append(torch.is_grad_enabled())
    )
    pairs = make_pairs([(5, 7)], 0)
    (old,) = learner.logprobs(pairs)
    assert old.tolist() == [0.0] * 7
    learner.update(make_samples(pairs, [old], 0), CLIP)
    assert passes == [False] * 3 + [True] * 3
    assert len(gradients(learner)) == len(list(learner.model.parameters()))
    assert all(not gradient.any() for gradient in gradients(learner))


def test_a_group_of_one_is_sharded_and_the_same(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    scenario = SCENARIOS["everything in the loss"]
    with join_ranks() as group:
        outcome = ranks.take_steps(make_learner(tiny_model, group, **scenario.settings), scenario)
    assert not torch.distributed.is_initialized()
    other = ranks.take_steps(make_learner(tiny_model, **scenario.settings), scenario)
    assert_close_outcomes(outcome, other)
