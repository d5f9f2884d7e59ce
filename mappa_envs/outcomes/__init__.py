"""The rules by which a task's own verdict is found."""
