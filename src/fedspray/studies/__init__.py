"""Studies: many runs as one piece of work, and what can be concluded from them.

`study` (which experiments; `overrides` by flags), `cells` (a row of a table, one run of it, and its key), `grid`
(running many: `backends`, `worker`), `results` (what is kept of one), `tuning` (choosing settings), `sweep` (one
setting over a list), `statistics`, `comparison`.
"""
