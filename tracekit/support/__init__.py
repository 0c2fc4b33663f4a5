"""What every room may use: files, spools, compiled loops, where data lie. It knows no trace."""

__all__: list[str] = []
