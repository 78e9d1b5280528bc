"""What is compiled ahead of time, without a GPU, and judged by the code that comes out."""

__all__: list[str] = []
