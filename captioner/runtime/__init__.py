"""What makes captioner fast on a given machine, and nothing else."""
