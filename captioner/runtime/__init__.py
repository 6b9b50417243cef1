"""What a command runs with: device, cores, threads, processes and random numbers."""
