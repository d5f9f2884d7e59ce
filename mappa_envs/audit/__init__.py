"""Measures whether a coach can be trusted."""
