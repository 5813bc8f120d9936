"""The report: one HTML page that says what was made, from what, how well, and how to make it again."""
