"""The paper's tables and figures beside ours.

`published` (cited figures), `lines` (published, ours, difference), `access` (which data are here), `trained` (parts
made of cells: the files in ``experiments``), `federations` (tables of clients), `proposition`, `cost`, `pictures`,
`parts` (all of them by name).
"""
