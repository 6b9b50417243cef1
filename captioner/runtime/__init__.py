"""Code for speed on a given machine: device, memory, threads."""
