"""Leased tasks with enforced fencing tokens."""
