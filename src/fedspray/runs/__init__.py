"""Runs: settings in, a folder of records, checkpoints, models and results out."""
