"""Conditions under which one link is named as slow among its peers."""

FAR = 2
"""Least time of a slow link over that of any peer in the median step, and over that of the median
link in most steps (at most 1.3 for links of the published jobs)."""
STEADY = 0.9
"""Least share of steps in which a slow link is slow."""
NO_SLOWER = 1.1
"""Largest computing time of the ranks at a slow link, over the mean."""
