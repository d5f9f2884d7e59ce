"""Coaches: they judge single actions from 0 to 10."""
