"""Every error this package raises.

    MappaTrainerError
    ├── RecipeError (ValueError)        a recipe, or a --set, does not describe a run
    ├── ModelError (ValueError)         a model cannot be found, loaded or trained
    ├── RunDirectoryError (OSError)     a run directory cannot be written or read
    ├── CheckpointError (OSError)       a checkpoint is missing, incomplete or does not fit
    ├── PolicyError (RuntimeError)      what is to act cannot be asked, or says no text
    ├── LeakageError (ValueError)       problems to be evaluated on were trained on
    └── TrainingError (RuntimeError)    a run cannot go on: what it would train on is wrong
        ├── UnjudgedError               the coach left too much unscored, or its budget is spent
        ├── AlarmError                  an alarm is raised that stops the run
        └── EngineError                 a server that generates failed, or answered nonsense

Messages say what was wrong, where, the value, and the fix.
"""

from __future__ import annotations


class MappaTrainerError(Exception):
    """Base of all errors of this package; a command ends with `exit_code` when it escapes."""

    exit_code = 2


class RecipeError(MappaTrainerError, ValueError):
    """A recipe file or an override does not describe a run."""


class ModelError(MappaTrainerError, ValueError):
    """A model cannot be found, loaded, or trained by this package."""


class RunDirectoryError(MappaTrainerError, OSError):
    """A run directory cannot be created, written or read."""


class CheckpointError(MappaTrainerError, OSError):
    """A checkpoint is missing, incomplete, or belongs to another run."""


class PolicyError(MappaTrainerError, RuntimeError):
    """What is to act cannot be asked, or says no text."""


class LeakageError(MappaTrainerError, ValueError):
    """Problems that a team is to be evaluated on are among those that it trains on."""


class TrainingError(MappaTrainerError, RuntimeError):
    """A run cannot go on, for instance because a whole iteration gave nothing to train on."""


class UnjudgedError(TrainingError):
    """Too many actions have no score, or the budget of the coach is spent.

    Raised before anything is trained on them; the run can be resumed.
    """


class AlarmError(TrainingError):
    """An alarm is raised that stops the run; it can be resumed, and then goes on past the alarm."""


class EngineError(TrainingError):
    """A server that generates cannot be started or reached, crashed, or answered nonsense."""
