"""House rules as tests."""
