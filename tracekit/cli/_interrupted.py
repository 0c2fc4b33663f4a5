"""The exit code of a command that was interrupted, which is known before anything else."""

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
