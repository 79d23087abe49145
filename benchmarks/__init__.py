"""What a round costs, next to its floor: ``fedspray bench``.

`cases` (what is measured), `process` and `players` (of a round), `floor`, `yardstick`, `measure`, `scaling`,
`report`, `command`; `reference` and `released` are players for ``--reference``, `memory` and `one_product` scripts.
"""
