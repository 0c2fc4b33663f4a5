"""What moves between GPUs: transfers, links, collectives, messages, and how long they take.

What is public of it is public in `tracekit.analysis`.
"""

__all__: list[str] = []
