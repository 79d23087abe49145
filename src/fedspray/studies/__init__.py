"""Studies: many runs as one piece of work, and what can be concluded from them.

`cells` (one run of a grid, and its key), `results` (what is kept of it), `grid` (running many), `plan` (which
ones), `tuning` (choosing settings), `sweep` (one setting over a list), `statistics`, `comparison`.
"""
