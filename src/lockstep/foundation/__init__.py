"""What every room stands on: errors with exit codes, files written whole, processes started in one place."""
