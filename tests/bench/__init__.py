"""Benchmarks against Gloo, DDP, Open MPI and the limit; see docs/benchmarks.md."""
