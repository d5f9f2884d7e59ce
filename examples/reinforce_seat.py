"""REINFORCE on one seat of a team, in plain PyTorch and without a language model.

The policy plays the coder of MathChat. It reads the problem's words in the observation and writes
a one-line program; the sandbox runs it, the scripted verifier hands in what was printed, and the
reward is the rubric coach's score of the program (0 to 1) plus 1 for a right answer.

    python examples/reinforce_seat.py --seed 0
"""

from __future__ import annotations

import argparse
import re
import zlib

import gymnasium
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import mappa_envs  # noqa: F401 (registers the environments)
from mappa_envs.play import Observation

PIECES = ("{a}", "{b}", "+", "-", "*", "%")  # {a} and {b} copy the problem's numbers
START, BUCKETS, ROW = len(PIECES), 256, 20


class CoderPolicy(nn.Module):
    """Writes three pieces, each drawn given the piece before it and the words of the problem."""

    def __init__(self) -> None:
        super().__init__()
        self.after = nn.Embedding(len(PIECES) + 1, len(PIECES))
        self.words = nn.EmbeddingBag(BUCKETS, len(PIECES))
        for table in (self.after, self.words):
            nn.init.zeros_(table.weight)

    def forward(self, observation: Observation) -> tuple[str, Tensor, Tensor]:
        """Return an action, its log-probability and the entropy of its choices."""
        problem = observation["messages"][-1]["content"].splitlines()[0]
        words = re.findall(r"[a-z]+|[-+*]", problem.lower())
        buckets = [zlib.crc32(word.encode()) % BUCKETS for word in words]
        hint = self.words(torch.tensor([buckets]))
        piece, pieces = torch.tensor([START]), []
        log_prob = entropy = torch.zeros(1)
        for _ in range(3):
            choice = Categorical(logits=self.after(piece) + hint)
            piece = choice.sample()
            pieces.append(PIECES[piece])
            log_prob, entropy = log_prob + choice.log_prob(piece), entropy + choice.entropy()
        a, b, *_ = re.findall(r"\d+", problem)
        expression = " ".join(pieces).format(a=a, b=b)
        return f"```python\nprint({expression})\n```", log_prob, entropy


def train(env: gymnasium.Env, policy: CoderPolicy, batches: int, size: int = 8) -> None:
    """Make actions likelier that earn more than their batch's mean, and print a table."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.3)
    seen: list[float] = []
    for batch in range(1, batches + 1):
        rewards, log_probs, entropies = [], [], []
        for _ in range(size):
            observation, _ = env.reset()
            action, log_prob, entropy = policy(observation)
            _, reward, _, _, _ = env.step(action)
            rewards.append(reward)
            log_probs.append(log_prob)
            entropies.append(entropy)
        advantages = torch.tensor(rewards) - sum(rewards) / size
        loss = -(advantages * torch.cat(log_probs)).mean() - 0.15 * torch.cat(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += rewards
        if batch % ROW == 0:
            mean = sum(seen[-ROW * size :]) / (ROW * size)
            print(f"{len(seen):8}  {mean:11.2f}  {action!r}")


@torch.no_grad()
def evaluate(env: gymnasium.Env, policy: CoderPolicy, problems: int = 64) -> float:
    """Return the mean reward on held-out problems."""
    total = 0.0
    for task in range(problems):
        observation, _ = env.reset(options={"split": "test", "task": task})
        total += env.step(policy(observation)[0])[1]
    return total / problems


def main() -> None:
    """Train, and print the mean reward on the way, before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, default=160)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    env = gymnasium.make(
        "mappa/MathChat-v0",
        seat="coder_0",
        coach={"kind": "rubric", "outcome_weight": 1.0},
        scenario={"roles": {"coder": {"max_turns": 1}}},
    )
    policy = CoderPolicy()
    env.reset(seed=arguments.seed)
    before = evaluate(env, policy)
    print("episodes  mean reward  last action")
    train(env, policy, arguments.batches)
    after = evaluate(env, policy)
    print(f"held-out problems: mean reward {before:.2f} before, {after:.2f} after")
    env.close()


if __name__ == "__main__":
    main()
