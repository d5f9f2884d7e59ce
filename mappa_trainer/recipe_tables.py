"""The tables of a recipe that this package reads."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)
"""TOML types its values, so `true` is no 1 and `"3"` no 3; a whole number may be a float."""


class EnvTable(BaseModel):
    """Which environment to play, found through PettingZoo's registry."""

    model_config = STRICT

    module: str
    """Imported first, so that it can register its environments."""
    id: str


Tuning = Literal["full", "lora", "frozen"]


class LoraTable(BaseModel):
    """The adapters of LoRA (arXiv 2106.09685) on every linear layer but the output head."""

    model_config = STRICT

    rank: int = Field(default=16, ge=1, le=8192)
    alpha: int = Field(default=32, ge=1, le=1_000_000)
    """The adapter's output is multiplied by `alpha / rank`."""


class ModelTable(BaseModel):
    """Which weights every agent starts from."""

    model_config = STRICT

    base: str
    """A Hugging Face folder, or a name `mappa_trainer.models` knows."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Where all weights are; `auto` is the first GPU, or the processor where there is none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the matrix products in training; weights are always float32."""
    sampler_precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the copy of the weights that generates."""
    token_budget: int = Field(default=4096, ge=1)
    """Positions that go through a model at a time in training."""
    gradient_checkpointing: bool = False
    """Compute the activations of each layer a second time instead of keeping them."""
    tuning: Tuning = "full"
    """What is trained of the weights: all of them, a LoRA adapter on them, or nothing."""
    lora: LoraTable = LoraTable()
    offload_optimizer: bool = False
    """Keep the optimiser's moments in the processor's memory while other weights train."""


class EngineTable(BaseModel):
    """What generates: this process, or vLLM servers."""

    model_config = STRICT

    kind: Literal["hf", "vllm"] = "hf"
    url: str | None = Field(default=None, pattern=r"^https?://[^/]")
    """Of a vLLM server that runs and can read this machine's files; None starts servers."""
    python: str | None = None
    """An interpreter that has vLLM; None looks for one, see `vllm_server.find_python`."""
    args: tuple[str, ...] = Field(default=(), strict=False)
    """More arguments of each server, e.g. `["--max-model-len", "4096"]`."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """The run stops when a server takes longer than this to start."""
    max_sync_gap: float = Field(default=0.1, gt=0)
    """The run stops when a server that was given new weights and the learner differ by more than
    this in the log-probabilities of a probe, on average."""

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        ours = [name for name in ("python", "args") if getattr(self, name)]
        if self.kind == "hf" and (given := [*ours, *(["url"] if self.url else [])]):
            raise ValueError(f"{', '.join(given)} is for kind = 'vllm'; give it, or leave it out")
        if self.url and ours:
            raise ValueError(
                f"{', '.join(ours)} is for servers that are started, and url names one"
            )
        return self


class SamplingTable(BaseModel):
    """How actions are drawn in training."""

    model_config = STRICT

    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=256, ge=1)
    max_new_tokens_of: dict[str, PositiveInt] = {}
    """Other limits for single agents, e.g. `{solver_0 = 40}`."""

    def limit(self, agent: str) -> int:
        """Return the most tokens of one action of `agent`."""
        return self.max_new_tokens_of.get(agent, self.max_new_tokens)


class AlgorithmTable(BaseModel):
    """How rewards become updates; as it is, REINFORCE++ with PPO's clip (arXiv 2501.03262)."""

    model_config = STRICT

    advantage: str = "reinforce++"
    loss: str = "ppo_clip"
    aggregation: Literal["token_mean", "seq_mean", "token_sum"] = "token_mean"
    """How token losses become the loss of an optimiser step."""
    token_sum_divisor: float = Field(default=1.0, ge=1e-6)
    """With `token_sum`, what the sum is divided by."""
    learning_rate: float = Field(default=1e-6, gt=0)
    warmup_updates: int = Field(default=0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rate goes on after the warmup; cosine falls to a tenth at the end."""
    kl_coef: float = Field(default=0.01, ge=0)
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    kl_in: Literal["reward", "loss"] = "reward"
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy, which is subtracted from the loss of each token."""
    importance_cap: float | None = Field(default=None, gt=0)
    """When given, each token's loss is multiplied by min(pi_old / pi_engine, cap)."""
    mask_truncated: bool = False
    """Leave out actions that were cut off by the token limit."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per policy token."""
    clip_low: float = Field(default=0.2, gt=0, le=1e6)
    clip_high: float = Field(default=0.2, gt=0, le=1e6)
    max_grad_norm: float = Field(default=1.0, gt=0)
    shuffle_rewards: bool = False
    """A control: deal each agent's rewards out among its actions at random, so that nothing can
    be learned from them."""


class TrainTable(BaseModel):
    """How long to train and what to keep."""

    model_config = STRICT

    seed: int = 0
    iterations: int = Field(ge=1)
    episodes: int = Field(ge=1)
    """Episodes collected in each iteration."""
    samples: int = Field(default=1, ge=1)
    """How often each task is played in an iteration; divides `episodes`."""
    updates: int = Field(default=1, ge=1)
    """Optimiser steps of each agent in each iteration; episodes are dealt out among them."""
    max_logprob_gap: float = Field(default=0.5, gt=0)
    """The run stops when the engine's and the learner's log-probabilities of the same tokens
    differ by more than this on average: then one of them has the wrong weights."""
    max_unscored: float = Field(default=0.5, ge=0, le=1)
    """The run stops before it trains on an iteration when a larger share of the iteration's
    actions is unscored: what is left says too little of the team."""
    save_every: int = Field(default=1, ge=1)
    keep_checkpoints: int = Field(default=1, ge=1)


class EvalTable(BaseModel):
    """The evaluation on held-out tasks before, during and after training."""

    model_config = STRICT

    problems: int = Field(default=64, ge=2)
    every: int = Field(default=5, ge=1)
    """Iterations between evaluations; the first is before training, the last after."""
    temperature: float | None = Field(default=None, gt=0)
    """Of sampled actions; that of training where it is left out."""
    greedy: bool = True
    """Whether to evaluate greedy actions besides sampled ones."""
    allow_overlap: bool = False
    """Whether held-out problems may be among those that are trained on."""


class AgentTable(BaseModel):
    """What is different for one agent; a key left out has the value of the recipe."""

    model_config = STRICT

    advantage: str | None = None
    tuning: Tuning | None = None
    weights: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    """A name for the agent's weights; agents that give one name share them. Default: its id."""


class AlarmRule(BaseModel):
    """What happens when a rule holds: a line on the screen, or the end of the run."""

    model_config = STRICT

    rule: Literal["warn", "stop", "off"] = "warn"


class EqualScores(AlarmRule):
    """All actions of an agent earned the same, so that there was nothing to learn."""

    iterations: int = Field(default=5, ge=1)
    """In a row."""


class EntropyCollapse(AlarmRule):
    """The policy hardly varies any more."""

    share: float = Field(default=0.01, gt=0, lt=1)
    """Of its entropy in the first iteration."""


class LengthBlowUp(AlarmRule):
    """Actions grow long."""

    factor: float = Field(default=4.0, gt=1)
    """Times their mean length in the first iteration."""


class Truncation(AlarmRule):
    """Nearly all actions of an agent are cut off by the token limit."""

    share: float = Field(default=0.95, gt=0, lt=1)
    """Of the agent's actions; the rule holds above it."""
    iterations: int = Field(default=10, ge=1)
    """In a row."""


class KLBlowUp(AlarmRule):
    """The policy is far from the reference."""

    nats: float = Field(default=10.0, gt=0)
    """Per token."""


class AlarmsTable(BaseModel):
    """When a run warns or stops by itself; see `mappa_trainer.health`."""

    model_config = STRICT

    equal_scores: EqualScores = EqualScores()
    entropy_collapse: EntropyCollapse = EntropyCollapse()
    length_blow_up: LengthBlowUp = LengthBlowUp()
    truncation: Truncation = Truncation()
    kl_blow_up: KLBlowUp = KLBlowUp()
