"""Where a stage runs: host, Docker or Apptainer; the image lock and the environment id."""
