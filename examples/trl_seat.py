"""TRL's GRPOTrainer trains a language model on one seat of a team.

TRL asks `rollout_func` for completions; here it plays an episode for each. The data set holds the
ids of tasks, the model's prompt is what the environment shows the seat, and TRL's reward function
hands on what the seat was paid. The model is random and tiny, so this shows how the parts fit
together, not how to learn mathematics; give the folder of a real one to `--model`.

    python examples/trl_seat.py --steps 2
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import mappa_envs  # noqa: F401 (registers the environments)
from mappa_trainer.testing import make_tiny_model

BATCH = 8  # episodes in a step


class SeatRollouts:
    """Plays one episode of a single-action seat for each prompt, which is the id of a task."""

    def __init__(self, seat: gymnasium.Env) -> None:
        self.seat = seat
        self.rewards: list[float] = []

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return the token ids of each episode, and what the seat was paid for it."""
        played = [self.play(task, trainer) for task in prompts]
        prompt_ids, completion_ids, seat_rewards = map(list, zip(*played, strict=True))
        self.rewards += seat_rewards
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "logprobs": None,  # TRL computes its own
            "seat_rewards": seat_rewards,
        }

    @torch.no_grad()
    def play(self, task: str, trainer: GRPOTrainer) -> tuple[list[int], list[int], float]:
        """Play one episode; return prompt ids, completion ids and reward."""
        observation, _ = self.seat.reset(options={"task": task})
        tokenizer = trainer.processing_class
        prompt_ids = tokenizer.apply_chat_template(
            list(observation["messages"]), add_generation_prompt=True, return_dict=False
        )
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        sequence = model.generate(
            torch.tensor([prompt_ids]), generation_config=trainer.generation_config
        )
        completion_ids = sequence[0, len(prompt_ids) :].tolist()
        action = tokenizer.decode(completion_ids, skip_special_tokens=True)
        _, reward, terminated, truncated, _ = self.seat.step(action)
        assert terminated or truncated, "the seat has more than one action"
        return prompt_ids, completion_ids, reward


def paid(completions: list[str], seat_rewards: list[float], **_: Any) -> list[float]:
    """Return what the episodes paid, which is TRL's reward."""
    return seat_rewards


def main() -> None:
    """Train for a few steps, and print the mean reward of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder; by default a tiny random model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    seat = gymnasium.make(
        "mappa/MathChat-v0",
        seat="solver_0",
        coach={"kind": "rubric"},
        # Noise differs in nothing but its length, so the number of words decides the reward.
        scenario={"roles": {"solver": {"rubric": {"concise": {"max_words": 1}}}}},
    )
    seat.reset(seed=arguments.seed)
    rollouts = SeatRollouts(seat)
    with tempfile.TemporaryDirectory() as folder:
        base = arguments.model or make_tiny_model(Path(folder) / "model", arguments.seed)
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(base),
            processing_class=AutoTokenizer.from_pretrained(base),
            reward_funcs=paid,
            rollout_func=rollouts,
            train_dataset=Dataset.from_dict({"prompt": [f"train-{i}" for i in range(8)]}),
            args=GRPOConfig(
                output_dir=folder,
                seed=arguments.seed,
                max_steps=arguments.steps,
                per_device_train_batch_size=BATCH,
                num_generations=4,
                max_completion_length=20,
                learning_rate=1e-3,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                gradient_checkpointing=False,
                use_cpu=True,
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("step  TRL's mean reward  environment's mean reward")
    for row in trainer.state.log_history[: arguments.steps]:
        step = row["step"]
        own = rollouts.rewards[(step - 1) * BATCH : step * BATCH]
        print(f"{step:4}  {row['reward']:17.6f}  {sum(own) / BATCH:25.6f}")
    seat.close()


if __name__ == "__main__":
    main()
