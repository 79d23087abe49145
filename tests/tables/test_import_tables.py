"""From files to graphs: what is read, joined, numbered, and said of rows that cannot be used."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from fedspray.data.graph import Graph
from fedspray.errors import InputError
from fedspray.tables.importing import Imported, import_tables
from fedspray.tables.schema import Schema

NODES = """id,income,region,since,y,bank
A-1,10,north,2020-01-01,no,b1
B-2,,south,2021-01-01,yes,b1
007,30,south,,no,b2
-4,20,,2022-01-01,,b2
"""
EDGES = """from,to,when
A-1,B-2,2020-05-01
B-2,A-1,2020-05-02
007,-4,2021-05-01
007,007,2021-05-01
A-1,007,2022-05-01
"""
MANY = EDGES + "".join(f"{name},{name},2020-05-01\n" * 5 for name in ("A-1", "B-2", "007", "-4"))
"""So many that one node less leaves more than half of them."""
SCHEMA = """
format = 1
[nodes]
files = "nodes.csv"
id = "id"
label = "y"
[edges]
files = "edges.csv"
source = "from"
target = "to"
[[features]]
columns = "income"
kind = "numeric"
[[features]]
columns = "region"
kind = "category"
other = false
"""

NUMERIC = '[[features]]\ncolumns = "income"\nkind = "numeric"\n'


def read(folder: Path, nodes: str = NODES, edges: str = EDGES, schema: str = SCHEMA, strict: bool = False) -> Imported:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return import_tables(replace(Schema.from_toml(schema), folder=folder), strict=strict)


def with_keys(section: str, lines: str) -> str:
    return SCHEMA.replace(f"[{section}]\n", f"[{section}]\n{lines}\n")


def test_ids_of_any_kind_become_rows_in_the_order_of_the_file(tmp_path: Path) -> None:
    made = read(tmp_path)
    assert made.names == ("A-1", "B-2", "007", "-4")
    assert made.graph.feature_names == ("income", "region=north", "region=south")
    # the mean of 10, 30 and 20 stands in for the missing income
    assert made.graph.dense_features().tolist() == [[10, 1, 0], [20, 0, 1], [30, 0, 1], [20, 0, 0]]
    assert made.graph.edges.tolist() == [[0, 0, 2], [1, 2, 3]]
    assert made.graph.labels.tolist() == [0, 1, 0, -1]
    assert made.graph.class_names == ("no", "yes")
    assert (made.graph.cleaning.self_loops, made.graph.cleaning.one_way) == (1, 2)
    assert made.problems.total == 0
    assert "A-1" not in repr(made)  # sessions are logged


def test_a_graph_from_tables_equals_one_from_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pairs, features = rng.integers(0, 50, size=(2, 300)), rng.normal(size=(50, 3))
    nodes = "\n".join(["id,a,b,c"] + [f"n{i},{','.join(map(repr, row.tolist()))}" for i, row in enumerate(features)])
    edges = "\n".join(["from,to"] + [f"n{u},n{v}" for u, v in pairs.T])
    schema = SCHEMA.split("label")[0] + SCHEMA.split('"y"')[1].split("[[features]]")[0]
    schema += '[[features]]\ncolumns = ["a", "b", "c"]\nkind = "numeric"\nmissing = 0\n'
    made = read(tmp_path, nodes, edges, schema).graph
    expected = Graph.from_arrays(features, pairs, num_classes=0, feature_names=("a", "b", "c"))
    assert made.equals(expected)
    assert made.cleaning == expected.cleaning


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "json", "parquet", "csv.gz", "semicolon"])
def test_every_format_gives_the_same_graph(tmp_path: Path, kind: str) -> None:
    expected = read(tmp_path).graph
    for name in ("nodes", "edges"):
        source = tmp_path / f"{name}.csv"
        target = tmp_path / f"{name}.{kind if kind != 'semicolon' else 'txt'}"
        table = f"read_csv('{source}', all_varchar=true)"
        if kind == "csv.gz":
            target.write_bytes(gzip.compress(source.read_bytes()))
        elif kind == "semicolon":
            target.write_text(source.read_text().replace(",", ";"))
        elif kind == "parquet":
            duckdb.sql(f"COPY (SELECT * FROM {table}) TO '{target}' (FORMAT parquet)")
        elif kind == "tsv":
            target.write_text(source.read_text().replace(",", "\t"))
        else:
            listed = [json.loads(row) for (row,) in duckdb.execute(f"SELECT to_json(t) FROM {table} AS t").fetchall()]
            lines = "\n".join(json.dumps(row) for row in listed)
            target.write_text(lines if kind == "jsonl" else json.dumps(listed, indent=1))
    schema = Schema.from_toml(SCHEMA)
    suffix = kind if kind != "semicolon" else "txt"
    nodes, edges = ([str(tmp_path / f"{name}.{suffix}")] for name in ("nodes", "edges"))
    assert import_tables(schema, nodes=nodes, edges=edges, strict=True).graph.equals(expected)


@pytest.mark.parametrize(
    ("file", "old", "new", "line", "part"),
    [
        ("nodes", "007,30,south,,no,b2", "007,30,south,,no", 4, "Columns"),
        ("nodes", "007,30", "007,thirty", 4, "'thirty'"),
        ("nodes", "007,30", "007,nan", 4, "finite"),
        ("nodes", "007,30", ",30", 4, "'id' is empty"),
        ("nodes", "B-2,", "A-1,", 3, "'A-1' appears more than once"),
        ("edges", "007,-4,2021-05-01", "007,ghost,2021-05-01", 4, "'ghost'"),
        ("edges", "007,-4,2021-05-01", ",-4,2021-05-01", 4, "'from' is empty"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_left_out_or_refused(
    tmp_path: Path, file: str, old: str, new: str, line: int, part: str
) -> None:
    content = {"nodes": NODES, "edges": MANY}
    content[file] = content[file].replace(old, new)
    made = read(tmp_path, content["nodes"], content["edges"])
    assert made.problems.sentences[0].startswith(f"{tmp_path / file}.csv, line {line}: ")
    assert part in made.problems.sentences[0]
    with pytest.raises(InputError, match=f"{file}.csv, line {line}: "):
        read(tmp_path, content["nodes"], content["edges"], strict=True)


def test_lines_are_counted_through_quoted_line_breaks_and_empty_lines(tmp_path: Path) -> None:
    nodes = NODES.replace("A-1,10,north", '"A-1",10,"no\nrth"').replace("007,30", "\n\n007,odd")
    sentences = read(tmp_path, nodes, MANY, schema=SCHEMA.replace("other = false\n", "")).problems.sentences
    assert next(s for s in sentences if "'odd'" in s).startswith(f"{tmp_path / 'nodes.csv'}, line 7: ")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_counted_after_a_row_that_does_not_fit(tmp_path: Path, end: str) -> None:
    nodes = NODES.replace("A-1,10,north", "A-1,10,more,north").replace("-4,20", "-4,odd").replace("\n", end)
    (tmp_path / "n.csv").write_bytes(nodes.encode())
    made = import_tables(Schema.from_toml(SCHEMA.split("[edges]")[0] + NUMERIC), nodes=[str(tmp_path / "n.csv")])
    assert [said.split(": ")[0][-6:] for said in made.problems.sentences] == ["line 2", "line 5"]


def test_a_row_with_several_problems_counts_once(tmp_path: Path) -> None:
    nodes = NODES.replace("id,income", "id,debt,income").replace("A-1,", "A-1,1,").replace("B-2,", "B-2,1,")
    nodes = nodes.replace("007,30", "B-2,odd,odd").replace("-4,20", "-4,odd,odd")
    edges = "from,to,amount\nA-1,ghost,-1\n" + "A-1,B-2,1\n" * 9
    schema = with_keys("edges", 'weight = "amount"').replace('"income"', '["debt", "income"]')
    problems = read(tmp_path, nodes, edges, schema).problems
    assert "odd" not in repr(problems)  # sessions are logged
    assert dict(problems.counts) == {"repeated id": 1, "bad value": 1, "edge to an unknown node": 1}
    assert len([said for said in problems.sentences if "'odd'" in said]) == 4


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl"])
def test_lines_may_end_in_different_ways(tmp_path: Path, kind: str) -> None:
    rows = ["id,income", *(f"n{i},{i}" for i in range(9)), "n1,1"]
    if kind == "jsonl":
        rows = [json.dumps(dict(zip(("id", "income"), row.split(","), strict=True))) for row in rows[1:]]
    mixed = "\r\n".join(rows[:5]) + "\n" + "\r\n".join(rows[5:]) + "\n"
    file = tmp_path / f"n.{kind}"
    file.write_bytes(gzip.compress(mixed.encode()) if kind == "csv.gz" else mixed.encode())
    made = import_tables(Schema.from_toml('format = 1\n[nodes]\nid = "id"\n' + NUMERIC), nodes=[str(file)])
    assert made.graph.dense_features()[:, 0].tolist() == list(range(9))
    assert [said.split(": ")[0] for said in made.problems.sentences] == [f"{file}, line {len(rows)}"]


@pytest.mark.parametrize(
    ("given", "said"),
    [("", "look like 2024-12-31"), ("unix", "be seconds since 1970"), ("%d.%m.%Y", "have the format %d.%m.%Y")],
)
def test_what_a_date_must_look_like(tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "n.csv").write_text("id,since\n1,\n2,then\n")
    feature = '[[features]]\ncolumns = "since"\nkind = "date"\n' + (f'time_format = "{given}"\n' if given else "")
    made = import_tables(
        Schema.from_toml('format = 1\n[nodes]\nid = "id"\n' + feature), nodes=[str(tmp_path / "n.csv")]
    )
    assert f"'then', but dates must {said}" in made.problems.sentences[0]


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "n.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"^\S+n\.parquet cannot be read: "):
        import_tables(Schema.from_toml(SCHEMA), nodes=[str(tmp_path / "n.parquet")])


def test_classes_and_vocabularies_of_the_schema_are_kept_and_others_refused(tmp_path: Path) -> None:
    schema = with_keys("nodes", 'classes = ["yes", "no"]')
    assert read(tmp_path, schema=schema).graph.labels.tolist() == [1, 0, 1, -1]
    wrong = read(tmp_path, NODES.replace("2021-01-01,yes", "2021-01-01,perhaps"), MANY, schema=schema)
    assert wrong.problems.counts["unknown label"] == 1
    known = SCHEMA.replace("other = false", 'other = false\nvocabulary = ["south", "east", "north"]')
    assert read(tmp_path, schema=known).graph.feature_names == ("income", "region=south", "region=east", "region=north")
    only = SCHEMA.replace("other = false", 'other = false\nvocabulary = ["south"]')
    assert (
        read(tmp_path, edges=MANY, schema=only).problems.sentences[0].startswith(f"{tmp_path / 'nodes.csv'}, line 2: ")
    )


def test_a_client_column_cuts_the_graph_and_counts_lost_edges(tmp_path: Path) -> None:
    made = read(tmp_path, NODES + "Z,1,north,2020-01-01,no,\n", schema=with_keys("nodes", 'client = "bank"'))
    federation = made.federation("ours")
    assert [client.name for client in federation.clients] == ["b1", "b2"]
    assert [client.graph.node_names for client in federation.clients] == [("A-1", "B-2"), ("007", "-4")]
    assert [client.edges_lost for client in federation.clients] == [1, 1]
    assert any("1 node without" in note for note in made.notes)


def test_files_for_each_client_have_ids_of_their_own(tmp_path: Path) -> None:
    for name, rows in (("north", "1,5\n2,6\n"), ("south", "1,7\n2,8\n3,9\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.csv").write_text("id,income\n" + rows)
        (tmp_path / name / "e.csv").write_text("from,to\n1,2\n" + ("2,3\n" if name == "south" else ""))
    schema = SCHEMA.replace("nodes.csv", "{client}/n.csv").replace("edges.csv", "{client}/e.csv")
    schema = schema.replace('label = "y"\n', "").rsplit("[[features]]", 1)[0]
    made = import_tables(replace(Schema.from_toml(schema), folder=tmp_path), strict=True)
    north, south = made.federation("ours").clients
    assert (north.name, south.name) == ("north", "south")
    assert north.graph.features.tolist() == [[5], [6]]
    assert south.graph.node_names == ("1", "2", "3")
    assert (north.graph.num_edges, south.graph.num_edges, north.edges_lost) == (1, 2, 0)


@pytest.mark.parametrize("query", ["", "query = 'SELECT * FROM nodes UNION ALL SELECT * FROM nodes1 ORDER BY id'\n"])
def test_all_files_of_a_client_are_read(tmp_path: Path, query: str) -> None:
    for name in ("north", "south"):
        (tmp_path / f"{name}_1.csv").write_text("id,income\n1,5\n2,6\n")
        (tmp_path / f"{name}_2.csv").write_text("id,income\n3,7\n")
    schema = SCHEMA.replace('"nodes.csv"', f'["{{client}}_1.csv", "{{client}}_2.csv"]\n{query}')
    schema = schema.replace('label = "y"\n', "").replace('files = "edges.csv"\n', "").rsplit("[[features]]", 1)[0]
    made = import_tables(replace(Schema.from_toml(schema), folder=tmp_path), strict=True)
    assert [client.graph.features.tolist() for client in made.federation("ours").clients] == [[[5], [6], [7]]] * 2


def test_edges_of_all_clients_in_one_file_need_ids_that_differ(tmp_path: Path) -> None:
    for name, ids in (("north", "12"), ("south", "34")):
        (tmp_path / f"{name}.csv").write_text("id,income\n" + "".join(f"{i},5\n" for i in ids))
    (tmp_path / "e.txt").write_text("from,to\n1,2\n2,3\n3,4\n")
    schema = Schema.from_toml(SCHEMA.replace('label = "y"\n', "").rsplit("[[features]]", 1)[0])
    nodes, edges = [str(tmp_path / "{client}.csv")], [str(tmp_path / "e.txt")]
    made = import_tables(schema, nodes=nodes, edges=edges, strict=True)
    assert [client.edges_lost for client in made.federation("ours").clients] == [1, 1]
    (tmp_path / "south.csv").write_text("id,income\n2,5\n")
    with pytest.raises(InputError, match="edges of all"):
        import_tables(schema, nodes=nodes, edges=edges)


@pytest.mark.parametrize(
    ("rows", "feature", "trap"),
    [
        ([str(1_600_000_000 + 9_999 * i) for i in range(60)], 'kind = "numeric"\nscale = "standard"', "time"),
        ([str(1_600 + 7 * i) for i in range(60)], 'kind = "numeric"\nscale = "standard"', None),
        (["abcdef"[2 * (i % 3) + i // 3 % 2] for i in range(60)], 'kind = "category"', "leak"),
        (["abcdef"[i % 5] for i in range(60)], 'kind = "category"', None),
    ],
)
def test_columns_are_suspected_before_they_are_scaled(
    tmp_path: Path, rows: list[str], feature: str, trap: str | None
) -> None:
    (tmp_path / "n.csv").write_text("id,v,y\n" + "".join(f"{i},{v},{'abc'[i % 3]}\n" for i, v in enumerate(rows)))
    schema = f'format = 1\n[nodes]\nid = "id"\nlabel = "y"\n[[features]]\ncolumns = "v"\n{feature}\n'
    made = import_tables(Schema.from_toml(schema), nodes=[str(tmp_path / "n.csv")])
    assert [found.kind for found in made.traps] == ([] if trap is None else [trap])


def test_numbers_that_differ_in_zeros_only_have_an_order(tmp_path: Path) -> None:
    """01 and 1 are the same number, and DuckDB lists them in any order: class 0 must be the same in every run."""
    words = ["1", "01", "001", "0001", "00001"]
    (tmp_path / "n.csv").write_text("id,v,y\n" + "".join(f"{i},{v},{v}\n" for i, v in enumerate(words)))
    schema = 'format = 1\n[nodes]\nid = "id"\nlabel = "y"\n[[features]]\ncolumns = "v"\nkind = "category"\n'
    made = import_tables(Schema.from_toml(schema), nodes=[str(tmp_path / "n.csv")])
    assert made.schema.nodes.classes == made.schema.features[0].vocabulary == tuple(sorted(words))


def test_a_format_of_time_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,v\n1,2\n")
    schema = 'format = 1\n[nodes]\nid = "id"\n[[features]]\ncolumns = "v"\nkind = "date"\ntime_format = "%"\n'
    with pytest.raises(InputError):
        import_tables(Schema.from_toml(schema), nodes=[str(tmp_path / "n.csv")])


def test_a_query_joins_tables(tmp_path: Path) -> None:
    (tmp_path / "extra.jsonl").write_text('{"who": "A-1", "score": 4}\n{"who": "007", "score": 2.5}\n')
    schema = SCHEMA.replace('"nodes.csv"', '{ people = "nodes.csv", extra = "extra.jsonl" }').replace(
        'id = "id"', "query = 'SELECT p.*, e.score FROM people AS p LEFT JOIN extra AS e ON e.who = p.id'\nid = \"id\""
    )
    made = read(tmp_path, schema=schema.replace('"income"', '"score"').replace("kind", "missing = 0\nkind", 1))
    scores = dict(zip(made.names, made.graph.dense_features()[:, 0].tolist(), strict=True))
    assert scores == {"A-1": 4, "B-2": 0, "007": 2.5, "-4": 0}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{secret}')",
        "COPY (SELECT 1) TO '{secret}.out'",
        "SELECT 1; DROP TABLE nodes",
        "ATTACH '{secret}.db'",
        "SELECT nonsense FROM nodes",
    ],
)
def test_a_query_of_somebody_elses_schema_reads_loaded_tables_only(tmp_path: Path, query: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("id,income,region,y\nhush,1,north,no\n")
    with pytest.raises(InputError, match=r"the query of \[nodes\]"):
        read(tmp_path, schema=with_keys("nodes", f'query = "{query.format(secret=secret)}"'))
    assert {file.name for file in tmp_path.iterdir()} == {"secret.csv", "nodes.csv", "edges.csv"}


def test_an_edge_list_alone_gets_structural_features_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("from,to\na,b\nb,c\nc,a\nc,d\n")
    schema = Schema.from_toml('format = 1\n[edges]\nfiles = "edges.csv"\nsource = "from"\ntarget = "to"\n')
    made = import_tables(replace(schema, folder=tmp_path))
    assert made.names == ("a", "b", "c", "d")
    assert made.graph.feature_names == ("degree", "neighbour_degree", "clustering", "core")
    degree = [2, 2, 3, 1]
    around = [2.5, 2.5, 5 / 3, 3]  # the mean degree of neighbours, by hand
    expected = np.stack([np.log1p(degree), np.log1p(around), [1, 1, 1 / 3, 0], np.log1p([2, 2, 2, 1])], axis=1)
    np.testing.assert_allclose(made.graph.dense_features(), expected, rtol=1e-6)
    assert any("structure" in note for note in made.notes)


def test_only_mutual_edges_and_only_those_until_a_day(tmp_path: Path) -> None:
    assert read(tmp_path, schema=with_keys("edges", 'direction = "mutual"')).graph.edges.tolist() == [[0], [1]]
    timed = read(tmp_path, schema=with_keys("edges", 'time = "when"\nuntil = 2021-12-31'))
    assert timed.graph.edges.tolist() == [[0, 2], [1, 3]]
    assert any("1 edge after 2021-12-31" in note for note in timed.notes)


def test_weights_add_up_and_must_be_positive(tmp_path: Path) -> None:
    edges = "from,to,when,amount\nA-1,B-2,,2\nB-2,A-1,,3\nA-1,B-2,,4\n007,-4,,0.5\n007,B-2,,-1\n007,007,,9\n"
    made = read(tmp_path, edges=edges, schema=with_keys("edges", 'weight = "amount"'))
    assert made.graph.edges.tolist() == [[0, 2], [1, 3]]
    assert made.graph.edge_weights is not None
    assert made.graph.edge_weights.tolist() == [9, 0.5]
    assert made.problems.sentences == [
        f"{tmp_path / 'edges.csv'}, line 6: column 'amount' holds '-1', but weights must be numbers above 0"
    ]
    logs = read(tmp_path, edges=edges, schema=with_keys("edges", 'weight = "amount"\nweight_scale = "log"'))
    assert logs.graph.edge_weights is not None
    np.testing.assert_allclose(logs.graph.edge_weights, np.log1p([9, 0.5]))


def test_splits_by_column_by_time_and_by_class(tmp_path: Path) -> None:
    rows = [f"n{i},{i},north,20{10 + i}-01-01,{'yes' if i < 4 else 'no'},{'abc'[i % 3]}" for i in range(12)]
    nodes = "\n".join(["id,income,region,since,y,part", *rows]) + "\n"
    edges = "from,to\nn0,n1\n"
    base = '[split]\nparts = "50/25/25"\n'
    column = base + 'kind = "column"\ncolumn = "part"\ntrain = "a"\nval = "b"\ntest = "c"\n'
    split = read(tmp_path, nodes, edges, SCHEMA + column).split
    assert split is not None
    assert np.flatnonzero(split.train).tolist() == [0, 3, 6, 9]
    assert np.flatnonzero(split.test).tolist() == [2, 5, 8, 11]
    timed = read(tmp_path, nodes, edges, SCHEMA + base + 'kind = "time"\ncolumn = "since"\n').split
    assert timed is not None
    assert np.flatnonzero(timed.train).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(timed.test).tolist() == [9, 10, 11]
    made = read(tmp_path, nodes, edges, SCHEMA + base + 'kind = "stratified"\n')
    stratified = made.split
    assert stratified is not None
    assert np.bincount(made.graph.labels[stratified.train]).tolist() == [4, 2]
    assert np.bincount(made.graph.labels[stratified.val]).tolist() == [2, 1]
    assert read(tmp_path, nodes, edges).split is None


def test_a_fixed_split_is_kept_or_refused_never_drawn_silently(tmp_path: Path) -> None:
    schema = with_keys("nodes", 'client = "bank"') + '[split]\nkind = "stratified"\n'
    federation = read(tmp_path, schema=schema).federation("ours")
    federation.check_labels(keep_split=True)
    with pytest.raises(InputError, match="keep-split"):
        federation.check_labels()
    with pytest.raises(InputError, match="keep-split"):
        federation.with_split(1)
    assert "own_split" not in federation.with_split(1, "40/30/30").settings


def test_the_resolved_schema_gives_new_rows_the_same_features(tmp_path: Path) -> None:
    schema = SCHEMA.replace('kind = "numeric"', 'kind = "numeric"\nscale = "standard"')
    made = read(tmp_path, schema=schema)
    new = "id,income,region,y\nN,30,south,no\nM,,north,yes\n"
    (tmp_path / "new.csv").write_text(new)
    (tmp_path / "links.csv").write_text("from,to\nN,M\n")
    again = import_tables(
        Schema.from_toml(str(made.graph.schema)),
        nodes=[str(tmp_path / "new.csv")],
        edges=[str(tmp_path / "links.csv")],
    ).graph
    assert again.feature_names == made.graph.feature_names
    assert again.dense_features()[0].tolist() == made.graph.dense_features()[2].tolist()
    assert again.dense_features()[1].tolist() == [0, 1, 0]  # a missing value is the mean: 0 after scaling


def test_too_many_bad_rows_mean_the_schema_does_not_fit(tmp_path: Path) -> None:
    schema = SCHEMA.replace('kind = "category"\nother = false', 'kind = "numeric"')
    with pytest.raises(InputError, match=r"line 2: column 'region' holds 'north'.*more than half"):
        read(tmp_path, schema=schema)


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedspray.tables.database.TICK", 0.0)
    (tmp_path / "nodes.csv").write_text("id,income,region,y\n" + "".join(f"n{i},1,north,no\n" for i in range(50_000)))
    (tmp_path / "edges.csv").write_text("from,to\nn0,n1\n")
    told: list[tuple[str, float]] = []
    schema = replace(Schema.from_toml(SCHEMA), folder=tmp_path)
    import_tables(schema, on_progress=lambda what, share: told.append((what, share)))
    assert {"reading nodes.csv", "sorting the edges"} <= {what for what, _ in told}
    assert all(0 <= share <= 1 for _, share in told)
