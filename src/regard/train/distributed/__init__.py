"""Training over several processes: ranks, DDP and FSDP."""
