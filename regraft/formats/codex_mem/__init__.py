"""What codex-mem writes, and the sidecar of its vectors."""
