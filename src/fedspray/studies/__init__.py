"""Studies: many runs as one job, and their conclusions.

`study` (which experiments; `overrides` by flags), `cells` (a row of a table, one run of it, and its key), `grid`
(running many: `backends`, `worker`), `results` (a stored cell), `tuning` (choosing settings), `sweep` (one
setting over a list), `statistics`, `comparison`.
"""
