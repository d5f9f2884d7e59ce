"""The far side of the sandboxes: processes of their own, on the standard library alone.

These modules never import the rest of the package: the process that holds them is started with
nothing of the caller's, and what it forks runs the agents' code.
"""
