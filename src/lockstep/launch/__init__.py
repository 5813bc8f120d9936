"""From a command to worker processes: inputs, engine, signals, attempts, results."""
