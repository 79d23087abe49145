"""Running a federation: processes, jobs, runs."""
