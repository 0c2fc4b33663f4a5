"""Conditions under which one link is named as slow among its peers."""

FAR = 2
"""A slow link takes so many times as long as any of its peers in the median step, and as the median
one in most steps (links of the published jobs: at most 1.3 times)."""
STEADY = 0.9
"""In which share of steps a slow link is slow."""
NO_SLOWER = 1.1
"""By how much the ranks at a slow link may compute longer than the mean."""
