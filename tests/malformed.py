"""Sound tables with their schema, and ways to damage them."""

from __future__ import annotations

import gzip
from collections.abc import Callable

from hypothesis import strategies as st

SCHEMA = """format = 1
[nodes]
files = "nodes.csv"
id = "id"
label = "y"
classes = ["no", "yes"]
client = "bank"
[edges]
files = "edges.csv"
source = "from"
target = "to"
weight = "amount"
[[features]]
columns = "income"
kind = "numeric"
scale = "standard"
[[features]]
columns = "since"
kind = "date"
[[features]]
columns = "region"
kind = "category"
vocabulary = ["north", "south"]
other = false
"""
ROWS = [
    f"c{i},{1000 + 7 * i},20{10 + i}-02-03,{'north' if i % 2 else 'south'},{'yes' if i % 3 else 'no'},b{i % 2}"
    for i in range(9)
]
LINKS = [f"c{i},c{(i + 2) % 9},{i + 1}.5" for i in range(9)]
HEADERS = {"nodes": "id,income,since,region,y,bank", "edges": "from,to,amount"}

Content = dict[str, bytes]
Change = Callable[[st.DataObject, Content], tuple[str, int | None]]
"""Damages one of the files; says which, and the line that must be named."""


def sound() -> Content:
    return {
        "nodes": "\n".join([HEADERS["nodes"], *ROWS, ""]).encode(),
        "edges": "\n".join([HEADERS["edges"], *LINKS, ""]).encode(),
    }


def cell(data: st.DataObject, content: Content, name: str, column: int, value: bytes) -> tuple[str, int]:
    lines = content[name].split(b"\n")
    row = data.draw(st.integers(1, 9), "row")
    cells = lines[row].split(b",")
    cells[column] = value
    lines[row] = b",".join(cells)
    content[name] = b"\n".join(lines)
    return name, row + 1


def which(data: st.DataObject) -> str:
    return data.draw(st.sampled_from(["nodes", "edges"]), "file")


def wrong_column(data: st.DataObject, content: Content) -> tuple[str, int]:
    name = which(data)
    columns = HEADERS[name].split(",")
    place = data.draw(st.integers(0, len(columns) - 1), "column")
    columns[place] = data.draw(st.sampled_from(["", "other", columns[place - 1], columns[place] + "é"]), "name")
    content[name] = ",".join(columns).encode() + content[name][len(HEADERS[name]) :]
    return name, 1


def ragged(data: st.DataObject, content: Content) -> tuple[str, int]:
    name = which(data)
    lines = content[name].split(b"\n")
    row = data.draw(st.integers(1, 9), "row")
    more = data.draw(st.booleans(), "more")
    lines[row] = lines[row] + b",more" if more else lines[row].rsplit(b",", 1)[0]
    content[name] = b"\n".join(lines)
    return name, row + 1


def duplicate_id(data: st.DataObject, content: Content) -> tuple[str, int]:
    lines = content["nodes"].split(b"\n")
    first = data.draw(st.integers(1, 8), "first")
    second = data.draw(st.integers(first + 1, 9), "second")
    lines[second] = lines[first].split(b",")[0] + b"," + lines[second].split(b",", 1)[1]
    content["nodes"] = b"\n".join(lines)
    return "nodes", second + 1


words = st.text("abcxyzABC_-é☃", min_size=1, max_size=12).map(lambda word: f"?{word}".encode())


def unknown_label(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, "nodes", 4, data.draw(words))


def bad_number(data: st.DataObject, content: Content) -> tuple[str, int]:
    odd = st.sampled_from(
        [b"NaN", b"inf", b"-Infinity", b"1e999", b"1,5".replace(b",", b"."), b"12 EUR", b"0x1F", b"--3"]
    )
    value = data.draw(odd.filter(lambda v: v != b"1.5") | words)
    name, column = data.draw(st.sampled_from([("nodes", 1), ("edges", 2)]))
    return cell(data, content, name, column, value)


def bad_weight(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, "edges", 2, data.draw(st.sampled_from([b"0", b"-1", b"", b"-0.0"])))


def bad_date(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(
        data, content, "nodes", 2, data.draw(st.sampled_from([b"2020-13-01", b"yesterday", b"31.12.2020"]) | words)
    )


def unknown_word(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, "nodes", 3, data.draw(words))


def bad_client(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, "nodes", 5, data.draw(st.sampled_from([b"../up", b"a b", b".", b"x/y", b"\xc3\xa9"])))


def unknown_end(data: st.DataObject, content: Content) -> tuple[str, int]:
    numbers = st.integers(-(10**40), 10**40).map(lambda n: str(n).encode())
    return cell(data, content, "edges", data.draw(st.integers(0, 1)), data.draw(numbers | words | st.just(b"")))


def no_id(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, "nodes", 0, b"")


def wrong_encoding(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, "nodes", data.draw(st.sampled_from([0, 3, 5])), b"caf\xe9")


def open_quote(data: st.DataObject, content: Content) -> tuple[str, int]:
    return cell(data, content, which(data), 0, b'"never closed')


def empty(data: st.DataObject, content: Content) -> tuple[str, None]:
    name = which(data)
    content[name] = data.draw(st.sampled_from([b"", b"\n", b"\n\n \n", b"\xef\xbb\xbf"]))
    return name, None


def header_only(data: st.DataObject, content: Content) -> tuple[str, None]:
    content["nodes"] = HEADERS["nodes"].encode() + data.draw(st.sampled_from([b"", b"\n", b"\n\n"]))
    return "nodes", None


def other_file(data: st.DataObject, content: Content) -> tuple[str, None]:
    name = which(data)
    packed = gzip.compress(b"a,b\n" * 99)
    content[name] = data.draw(st.sampled_from([b"PK\x03\x04" + bytes(100), b"PAR1", packed, bytes(range(256)) * 4]))
    return name, None


CHANGES: list[Change] = [
    *(wrong_column, ragged, duplicate_id, unknown_label, bad_number, bad_weight, bad_date, unknown_word, bad_client),
    *(unknown_end, no_id, wrong_encoding, open_quote, empty, header_only, other_file),
]
