"""Measures whether a coach can be trusted: from stored episodes, by probes, by playing on."""
