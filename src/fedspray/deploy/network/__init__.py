"""Who may say what to whom: NVFlare's processes, closed to everything that a run does not need."""
