"""A simulator of training jobs on GPUs, which writes traces and the truth about them.

It is judge of tracekit, so it shares nothing with it: it imports no part of it, writes the rows of
its exports itself and keeps its own books. What it has in common with tracekit is data: the
description of the machine, and that of nsys's schemas.
"""
