"""The paper's tables and figures beside ours.

`published` (cited figures), `lines` (published, ours, difference), `access` (which data is here), `trained` (parts
made of cells: the studies in ``experiments``), `tables` (what they show), `federations` (Tables 1 and 4), `table2`,
`figure2`, `proposition` and `separability` (Proposition 1), `cost`, `pictures`, `parts` (all of them by name),
`helped` (the README's picture).
"""
