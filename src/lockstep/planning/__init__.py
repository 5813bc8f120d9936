"""What a run will need, known before it starts: memory per GPU and host, disk, time; and whether it fits."""
