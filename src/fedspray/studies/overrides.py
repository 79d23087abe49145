"""How flags change the file of a study: its data sets, methods and backbones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspray.experiment import check_node_lists, data_knobs
from fedspray.studies.study import dataset_name, method_name, split_owners

Values = dict[str, Any]

_SINGLE = {"datasets": "dataset", "algorithms": "algorithm", "backbones": "backbone"}
"""Lists of ``[compare]``, and the key of the experiment that stands for a list of one."""


def with_flags(values: Mapping[str, Any], lists: Mapping[str, Any], flags: Mapping[str, Any], where: str) -> Values:
    """The values of a file, changed by flags: ``lists`` are keys of ``[compare]``, ``flags`` those of the experiment.

    A flag that names an entry of the file takes the whole entry; rules, grids and a reference for entries
    it drops are dropped too. Data flags apply to every data set.
    """
    found, compare = dict(values), values.get("compare", {})
    if isinstance(compare, Mapping):
        chosen = {key: _entries(compare.get(key), named, key) for key, named in lists.items()}
        found["compare"] = _with_data({**_restricted(values, compare, chosen), **chosen}, flags)
        for entry in chosen.get("datasets", []):
            listed = compare.get("datasets", [])
            is_new = isinstance(entry, str) and not (isinstance(listed, list) and entry in listed)
            if is_new and "partition_dir" not in flags:
                check_node_lists(values, entry, where)
    if "seeds" in lists:
        found = {name: value for name, value in found.items() if name not in ("seed", "seeds")}
    return {**found, **flags}


def _entries(listed: Any, named: Any, key: str) -> Any:
    """The names given by flags, as the file's entries where it has them."""
    if not isinstance(listed, list) or not isinstance(named, list):
        return named
    known = {_name(entry, key): entry for entry in listed}
    return [known.get(name, known.get(_name(name, key), name)) for name in named]


def _name(entry: Any, key: str) -> str:
    """What an entry of a list is called in tables."""
    if not isinstance(entry, str | Mapping):
        return str(entry)  # refused later
    if key == "datasets":
        return dataset_name(entry)
    return method_name(entry) if key == "algorithms" else str(entry)


def _restricted(values: Mapping[str, Any], compare: Mapping[str, Any], chosen: Mapping[str, Any]) -> Values:
    """The file's ``[compare]`` without tables for data sets, methods and backbones that flags drop."""
    before, after = set(), set()
    for key, single in _SINGLE.items():
        if key in chosen:
            listed = compare.get(key, [values[single]] if single in values else [])
            before |= {_name(entry, key) for entry in listed} if isinstance(listed, list) else set()
            after |= {_name(entry, key) for entry in chosen[key]}
    gone = before - after

    def kept(tables: Any) -> Any:
        if not isinstance(tables, Mapping):
            return tables  # refused later
        return {k: v for k, v in tables.items() if not gone & set(split_owners(k, [*gone, *after]))}

    found = {**compare, **({"set": kept(compare["set"])} if "set" in compare else {})}
    reference = compare.get("reference")
    if isinstance(reference, str) and reference in gone:
        del found["reference"]
    tune = compare.get("tune")
    if isinstance(tune, Mapping):
        found["tune"] = {**tune, **({"grid": kept(tune["grid"])} if "grid" in tune else {})}
        if isinstance(tune.get("untuned"), list):
            found["tune"]["untuned"] = [
                name for name in tune["untuned"] if not (isinstance(name, str) and name in gone)
            ]
    return found


def _with_data(compare: Values, flags: Mapping[str, Any]) -> Values:
    """Data sets given as tables have their own data keys; flags override them."""
    data, listed = {key: flags[key] for key in data_knobs() if key in flags}, compare.get("datasets")
    if not data or not isinstance(listed, list):
        return compare
    return {**compare, "datasets": [{**e, **data} if isinstance(e, Mapping) else e for e in listed]}
