"""Where a stage runs: the host, Docker or Apptainer behind one small interface; and which environment it must find."""
