"""A policy-gradient trainer for teams of language-model agents with per-action rewards.

Start with `mappa_trainer.types` for the concepts and `mappa_trainer.train` for the loop.
"""
