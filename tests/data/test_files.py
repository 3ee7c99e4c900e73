"""Reading data: every format and quirk by small files written by hand, and every refusal by its sentence."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
from conftest import says
from helpers.small_models import ran_json

from headcount.data import text_files
from headcount.data.columns import Table, drawn_numbers, read_table
from headcount.data.files import read_sheet
from headcount.data.labels import Labels, model_labels, outputs_of
from headcount.embedded import EMBEDDED
from headcount.errors import BadData


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


def _seen(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*table.texts, *([table.labels] if table.labels is not None else []), strict=True))


# --- the layouts of GLUE and its kin --------------------------------------------------------------------------------

LAYOUTS = {
    "SST-2": ("sentence\tlabel\nit 's \"fine . \t1\nbleak \t0\n", [("it 's \"fine . ", "1"), ("bleak ", "0")]),
    "CoLA": ("gj04\t1\t\tHe ran.\ngj04\t0\t*\tRan he the.", [("He ran.", "1"), ("Ran he the.", "0")]),
    "MRPC": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t17\t18\t" So he said .\tHe said "so" .\n0\t3\t4\tA\tB"\n',
        [('" So he said .', 'He said "so" .', "1"), ("A", 'B"', "0")],
    ),
    "RTE": ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n", [("a", "b", "not_entailment")]),
    "QNLI": ("index\tquestion\tsentence\tlabel\n0\tWho?\tShe.\tentailment\n", [("Who?", "She.", "entailment")]),
    "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tHow?\tWhy?\t0\n", [("How?", "Why?", "0")]),
    "MNLI": (
        "index\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tslate\t(x)\ta\tb\tneutral\tneutral\n1\tslate\t(x)\tc\td\tneutral\t-\n2\tslate\t(x)\te\tf\tneutral\tentailment\n",
        [("a", "b", "neutral"), ("e", "f", "entailment")],
    ),
    "Windows": ("Sentence\tLabel\r\none\t1\r\n\r\ntwo\t0\r\n", [("one", "1"), ("two", "0")]),
    "odd separators": ("text\tlabel\na\u2028b\x85c\x0bd\t1\n", [("a\u2028b\x85c\x0bd", "1")]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
def test_tab_separated_files_of_all_layouts(write: Any, layout: str, packing: str) -> None:
    text, want = LAYOUTS[layout]
    packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[packing](text.encode())
    table = read_table(write(f"{layout}.tsv{packing}", packed), "label")
    assert _seen(table) == want
    assert table.skipped == (layout == "MNLI")
    assert table.classes == {label: 1 for *_, label in want}
    if layout == "MNLI":
        assert table.rows == [1, 3], "rows keep the numbers that they have in the file"


def test_a_packed_file_is_found_without_its_ending_and_known_by_its_bytes(write: Any) -> None:
    path = write("dev.tsv.gz", gzip.compress(b"text\tlabel\na\t1\n"))
    assert _seen(read_table(path.with_suffix(""), "label")) == [("a", "1")]
    assert _seen(read_table(write("misnamed.tsv", gzip.compress(b"text\tlabel\na\t1\n")), "label")) == [("a", "1")]


def test_regression_reads_scores_as_numbers(write: Any) -> None:
    path = write("dev.tsv", "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\ta\tb\t4.750\n1\tx\tc\td\t0\n")
    assert _seen(read_table(path, "number")) == [("a", "b", 4.75), ("c", "d", 0.0)]
    with says(BadData, about="'high' in column 'score'"):
        read_table(write("bad.tsv", "text\tscore\na\thigh\n"), "number")
    with says(BadData, about="not a finite number"):
        read_table(write("bad.tsv", "text\tscore\na\tnan\n"), "number")


def test_comma_separated_files_are_quoted_and_may_hold_line_breaks(write: Any) -> None:
    path = write("dev.csv", 'text,label\n"He said ""so"", twice.\nTwice!",1\nplain,0\n')
    assert _seen(read_table(path, "label")) == [('He said "so", twice.\nTwice!', "1"), ("plain", "0")]
    with says(BadData, about="Line 4 of"):
        read_table(write("dev.csv", 'text,label\n"a\nb",1\nc,1,2\n'), "label")
    with says(BadData, about="Line 2 of"):
        read_table(write("dev.csv", 'text,label\n"never closed,1\n'), "label")
    long = "x" * 200_000
    assert read_table(write("long.csv", f"text,label\n{long},1\n"), "label").texts[0] == [long]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": "a", "label": true}\n\n{"label": 0, "text": "b"}\n'),
        ("a.json", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}'),
        ("a.json", '[{"text": "a", "label": 1.0}, {"text": "b", "label": 0}]'),
        ("a.json", '{"text": ["a", "b"], "label": ["1", "0"]}'),
        ("a.json", '{"version": 2, "data": [{"text": "a", "label": 1}, {"text": "b", "label": 0}]}'),
    ],
)
def test_json_in_all_its_forms(write: Any, name: str, content: str) -> None:
    assert _seen(read_table(write(name, content), "label")) == [("a", "1"), ("b", "0")]


def test_parquet_and_the_class_names_that_it_carries(write: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    data.to_parquet(tmp_path / "a.parquet")
    for source in (tmp_path / "a.parquet", data, datasets.DatasetDict(train=data.select([0]), validation=data)):
        table = read_table(source, "label")
        assert _seen(table) == [("a", "1"), ("b", "0")]
        assert table.class_names == ("bad", "good")
    whole = (tmp_path / "a.parquet").read_bytes()
    with says(BadData, about="not a whole Parquet file"):
        read_table(write("b.parquet", whole[: len(whole) // 2]), "label")


def test_tables_in_memory() -> None:
    pandas = pytest.importorskip("pandas")
    want = [("a", "1"), ("b", "0")]
    for data in (
        [{"text": "a", "label": 1}, {"text": "b", "label": 0}],
        {"text": ["a", "b"], "label": [1, 0]},
        pandas.DataFrame({"text": ["a", "b"], "label": [1, 0]}),
    ):
        assert _seen(read_table(data, "label")) == want
    gaps = pandas.DataFrame({"text": ["a", "b"], "label": [1, None]})  # which makes the label 1.0
    assert (_seen(read_table(gaps, "label")), read_table(gaps, "label").skipped) == ([("a", "1")], 1)
    assert _seen(read_table(["one", "two"], "text")) == [("one",), ("two",)]
    with says(BadData, about="differ in length"):
        read_table({"text": ["a", "b"], "label": [1]}, "label")
    for empty in ([], {}, {"text": []}):
        with says(BadData):
            read_table(empty, "label")
    with says(BadData, about="is a int"):
        read_table(7, "label")
    with says(BadData, about="no split 'dev'"):
        read_table({"text": ["a"], "label": [1]}, "label", split="dev")


# --- which column is what -------------------------------------------------------------------------------------------


def test_columns_by_name_by_number_and_without_a_header(write: Any) -> None:
    path = write("a.tsv", "title\tbody\tstars\nGood\tbook\t5\n")
    for text in ("title,body", ("title", "body"), "Title,BODY", "1,2", (1, 2)):
        assert _seen(read_table(path, "label", text=text, label="stars")) == [("Good", "book", "5")]
    assert _seen(read_table(path, "label", text="body", label="stars")) == [("book", "5")]
    news = write("b.csv", '"3","Wall St. Bears","Short, sellers"\n"4","Chips","Fast"\n')
    assert _seen(read_table(news, "label", text="2,3", label="1"))[0] == ("Wall St. Bears", "Short, sellers", "3")
    assert len(read_table(news, "label", text=2, label=1)) == 2
    comma = {"a,b": ["x"], "label": ["1"]}
    assert _seen(read_table(comma, "label", text="a,b")) == [("x", "1")]


def test_what_is_missing_is_said_with_the_columns_that_are_there(write: Any) -> None:
    test = write("test.tsv", "index\tsentence\n0\tunlabelled\n")
    with says(BadData, about="'index', 'sentence'") as caught:
        read_table(test, "label")
    assert "label=" in str(caught.value)
    assert "test files have no labels" in str(caught.value)
    with says(BadData, about="no column 'mood'; its columns are 'index', 'sentence'"):
        read_table(test, "label", label="mood")
    with says(BadData, about="which column of"):
        read_table(write("a.tsv", "7\tgreat film\t1\n8\tbad film\t0\n"), "label")
    with says(BadData, about="names 3 columns"):
        read_table(test, "label", text=("index", "sentence", "index"))
    with says(BadData, about="two columns called 'label'"):
        read_table(write("a.tsv", "text\tlabel\tlabel\na\t1\t1\n"), "label")
    with says(BadData, about="Row 2 of the data has None"):
        read_table([{"text": "a", "label": 1}, {"label": 0}], "label")
    with says(BadData, about="plain text"):
        read_table(write("a.txt", "one\ntwo\n"), "label")
    with says(BadData, about="Every label of the data is -1"):
        read_table({"text": ["a", "b"], "label": [-1, -1]}, "label")
    with says(BadData, about="No row of the data has a label"):
        read_table({"text": ["a", "b"], "label": ["-", ""]}, "label")


def test_a_text_file_with_tabs_is_a_table_where_labels_are_needed(write: Any) -> None:
    path = write("msr.txt", "Quality\t#1 String\t#2 String\n1\ta\tb\n")
    assert _seen(read_table(path, "label")) == [("a", "b", "1")]
    assert read_table(path, "text").texts[0] == ["Quality\t#1 String\t#2 String", "1\ta\tb"]


@pytest.mark.parametrize(
    ("name", "content", "about"),
    [
        ("a.tsv", b"text\tlabel\na\t1\nb\t0\tx\n", "Line 3 of"),
        ("a.tsv", b"text\tlabel\na\t1\nb\n", "has 1 columns and the others have 2"),
        ("a.tsv", b"", "is empty"),
        ("a.tsv", b"\n \n", "is empty"),
        ("a.tsv", b"text\tlabel\n", "a header and no rows"),
        ("a.tsv", b"\x89PNG\x00\x00", "binary file"),
        ("a.tsv", "text\tlabel\ncafé\t1\n".encode("latin1"), "line 2 has the byte 0xe9"),
        ("a.tsv", "text\tlabel\n".encode("utf-16"), "UTF-16"),
        ("a.tsv.gz", gzip.compress(b"text\tlabel\na\t1\n")[:-9], "compressed and damaged"),
        ("a.tsv.xz", lzma.compress(b"text\tlabel\na\t1\n")[:-9], "compressed and damaged"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": \n', "Line 2 of"),
        ("a.jsonl", b"[1, 2]\n", "every line must be an object"),
        ("a.json", b'{"text": ', "is not JSON"),
        ("a.json", b"3", "holds no table"),
    ],
    ids=range(14),
)
def test_files_that_cannot_be_read_are_errors_with_the_place(write: Any, name: str, content: bytes, about: str) -> None:
    with says(BadData, about=about):
        read_table(write(name, content), "label")


# --- parallel text --------------------------------------------------------------------------------------------------


def test_parallel_text_in_two_files(write: Any, tmp_path: Path) -> None:
    source, target = write("test.de.gz", gzip.compress(b"eins\n\nzwei\n")), write("test.en", "one\n\ntwo\n")
    want = [("eins", "one"), ("", ""), ("zwei", "two")]
    asked: list[dict[str, Any]] = [
        {"data": (source, target)},
        {"data": str(source), "target": str(target)},
        {"data": tmp_path / "test.de", "target": target},
        {"data": source, "target": "en"},
        {"data": tmp_path / "test", "text": "de", "target": "en"},
    ]
    for one in asked:
        assert _seen(read_table(wants="target", **one)) == want, "blank lines stay: they keep the files in step"
    with says(BadData, about="has 3 lines and"):
        read_table((source, write("short.en", "one\n")), "target")
    with says(BadData, about="no file 'fr'"):
        read_table(source, "target", target="fr")
    with says(BadData, about="no file"):
        read_table((source, tmp_path / "nowhere"), "target")
    with says(BadData, about="target="):
        read_table(source, "target")
    with says(BadData, about="is a table"):
        read_table((source, write("t.tsv", "text\tlabel\na\t1\n")), "target")


def test_parallel_text_in_tables(write: Any) -> None:
    path = write(
        "a.jsonl", '{"translation": {"de": "eins", "en": "one"}}\n{"translation": {"de": "zwei", "en": null}}\n'
    )
    table = read_table(path, "target", text="de", target="en")
    assert (_seen(table), table.skipped) == ([("eins", "one")], 1)
    with says(BadData, about="'de', 'en'"):
        read_table(path, "target")
    assert _seen(read_table(write("b.jsonl", '{"translation": {"source": "a", "target": "b"}}\n'), "target")) == [
        ("a", "b")
    ]
    assert _seen(read_table(write("a.tsv", "source\ttarget\na\tb\n"), "target")) == [("a", "b")]
    assert _seen(
        read_table(write("a.tsv", "id\tsource\ttarget\tx\n1\ta\tb\tc\n"), "target", text="x", target="id")
    ) == [("c", "1")]


def test_the_texts_inside_a_column_of_objects_are_columns_where_they_are_asked_for(write: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"id": "1", "both": {"en": "one", "fr": "un", "id": "x", "at": [0]}, "more": {"en": "no"}},
        {"id": "2", "both": {"en": "two", "fr": "deux", "id": "y", "at": [1]}, "more": {"en": "no"}},
    ]
    kept = write("a.parquet", b"")
    parquet.write_table(pyarrow.Table.from_pylist(rows), kept)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for source in (rows, columns, kept, pytest.importorskip("datasets").Dataset.from_list(rows)):
        sheet = read_sheet(source)
        assert set(sheet.names) == {"id", "both", "more", "en", "fr"}, "a column of numbers inside is none of texts"
        assert sheet.column("id") == ["1", "2"], "a column of the table comes before one of that name inside another"
        assert _seen(read_table(source, "target", text="en", target="FR")) == [("one", "un"), ("two", "deux")]
        with says(BadData, about="'fr'"):
            read_table(source, "target", text="en", target="de")


def test_what_stands_inside_another_column_is_never_guessed() -> None:
    inside = {"sentence": "wrong", "label": "9", "source": "wrong", "target": "wrong"}
    rows = [{"text": "a", "label": 1, "meta": inside}, {"text": "b", "label": 0, "meta": None}]
    assert _seen(read_table(rows, "label")) == [("a", "1"), ("b", "0")]
    assert _seen(read_table(rows[:1], "label", text="sentence")) == [("wrong", "1")]
    with says(BadData, about="which columns"):
        read_table(rows, "target")


# --- data sets by name, folders -------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: Any, tmp_path: Path) -> Any:
    """Puts data sets, {(path, part): {split: rows}}, in the place of the hub, and lists what is asked for."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)

    def holds(parts: dict[tuple[str, str | None], dict[str, Any]]) -> list[Any]:
        asked: list[Any] = []

        def load(path: str, part: str | None, split: str | None = None) -> Any:
            asked.append((path, part, split))
            splits = {
                name: datasets.Dataset.from_list(rows) if isinstance(rows, list) else rows
                for name, rows in parts[path, part].items()
            }
            return splits if split is None else splits[split]

        monkeypatch.setattr(datasets, "load_dataset", load)
        return asked

    return holds


def test_a_name_may_bring_its_split(hub: Any, write: Any, tmp_path: Path) -> None:
    seen = {split: [{"sentence": split, "label": 1}] for split in ("train", "validation", "train[:1]")}
    asked = hub({("glue", "sst2"): seen})
    for name, split, want in (
        ("glue/sst2@train", None, "train"),
        ("glue/sst2@train", "train", "train"),
        ("glue/sst2@train[:1]", None, "train[:1]"),
        ("glue/sst2", "train", "train"),
        ("glue/sst2", None, "validation"),
    ):
        table = read_table(name, "label", split=split)
        assert _seen(table) == [(want, "1")]
        assert table.name == name, "people see which split it was"
    assert asked == [("glue", "sst2", one) for one in ("train", "train", "train[:1]", "train", None)]
    with says(BadData, about="'glue/sst2@nowhere'"):
        read_table("glue/sst2@nowhere", "label")
    del asked[:]
    with says(BadData, about="names the split 'train' and split= (--split) is 'test'"):
        read_table("glue/sst2@train", "label", split="test")
    for wrong in ("@train", "glue/sst2@"):
        with says(BadData, about="NAME@SPLIT"):
            read_table(wrong, "label")
    for missing in ("dev.tsv@train", "some@dev.tsv", "./dev@train", "me@home/dev.tsv"):
        with says(BadData, about=f"no file {missing!r}"):
            read_table(missing, "label")
    assert asked == []
    with says(BadData, about="'me@home/dev'"):  # no split has a slash in it
        read_table("me@home/dev", "label")
    assert asked == [("me@home", "dev", None), ("me@home/dev", None, None)]
    write("dev.tsv", "text\tlabel\na\t1\n")
    write("films/good/1.png", b"x")
    with says(BadData, about="dev.tsv is a file, and only a data set by name"):
        read_table("dev.tsv@train", "label")
    with says(BadData, about="films is a folder"):
        read_table("films@train", "image")
    write("glue@train.tsv", "text\tlabel\nin a file\t1\n")
    write("me@home/dev.tsv", "text\tlabel\nin a folder\t1\n")
    assert _seen(read_table("glue@train.tsv", "label")) == [("in a file", "1")]
    assert _seen(read_table("me@home/dev.tsv", "label")) == [("in a folder", "1")]
    assert len(asked) == 2


def test_parallel_data_sets_by_name(hub: Any) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"translation": [{"en": "one", "fr": "un"}, {"en": "two", "fr": "deux"}]}
    kinds = [{"en": datasets.Value("string"), "fr": datasets.Value("string")}, datasets.Translation(["en", "fr"])]
    for kind in kinds:
        wmt = datasets.Dataset.from_dict(rows, features=datasets.Features(translation=kind))
        hub({("wmt/wmt14", "fr-en"): {"train": wmt}})
        table = read_table("wmt/wmt14/fr-en@train", "target", text="en", target="fr")
        assert _seen(table) == [("one", "un"), ("two", "deux")]
    hub({("bentrevett/multi30k", None): {"validation": [{"en": "one", "de": "eins"}]}})
    assert _seen(read_table("bentrevett/multi30k", "target", text="de", target="en")) == [("eins", "one")]
    assert _seen(read_table("bentrevett/multi30k@validation", "target", text="de", target="en")) == [("eins", "one")]


def test_a_data_set_is_read_column_by_column_when_they_are_asked_for() -> None:
    datasets = pytest.importorskip("datasets")

    class Counted:
        """Two columns that note when they are read."""

        def __init__(self) -> None:
            self.features = {"id": datasets.Value("string"), "translation": datasets.Translation(["en", "fr"])}
            self.column_names, self.read = list(self.features), list[str]()

        def __len__(self) -> int:
            return 1

        def __getitem__(self, name: str) -> list[Any]:
            self.read.append(name)
            return {"id": ["7"], "translation": [{"en": "one", "fr": "un"}]}[name]

    data = Counted()
    sheet = read_sheet(data)
    assert (sheet.names, data.read) == (("en", "fr", "id", "translation"), [])
    assert (sheet.column("fr"), data.read) == (["un"], ["translation"])


FILMS = {
    "train": ["a splendid film\tpositive", "a terrible film\tnegative", "a boring film\tnegative"],
    "validation": [
        "a wonderful film\tpositive",
        "an awful film\tnegative",
        "a moving song\tpositive",
        "dull\tnegative",
    ],
}


def test_a_command_takes_a_split_for_each_of_its_data(hub: Any, write: Any, tmp_path: Path) -> None:
    rows = {
        split: [dict(zip(("sentence", "label"), line.split("\t"), strict=True)) for line in lines]
        for split, lines in FILMS.items()
    }
    files = {split: write(f"{split}.tsv", "\n".join(["sentence\tlabel", *lines])) for split, lines in FILMS.items()}
    asked, found = hub({("glue", "sst2"): rows}), []
    for data, score in (("glue/sst2@validation", "glue/sst2@train"), (files["validation"], files["train"])):
        sets = ("--data", data, "--score-data", score)
        made = ran_json("curve", EMBEDDED / "classifier", *sets, "--step", "50%", "-o", tmp_path / f"run-{len(found)}")
        found.append(
            [(point["plan"], point["result"]["value"]) for curve in made["curves"] for point in curve["points"]]
        )
    assert found[0] == found[1]
    assert {split for *_, split in asked} == set(FILMS)


def test_data_sets_by_name_are_asked_for_as_datasets_wants_it(monkeypatch: Any, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []
    data = datasets.Dataset.from_dict({"sentence": ["a"], "label": [1]})

    def load(path: str, part: str | None, split: str | None = None) -> Any:
        asked.append((path, part, split))
        if path == "stanfordnlp":
            raise FileNotFoundError("no such data set")
        return data if split else datasets.DatasetDict(train=data, validation=data, test=data)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    assert _seen(read_table("glue/sst2", "label", split="test")) == [("a", "1")]
    assert _seen(read_table("stanfordnlp/sst2", "label")) == [("a", "1")]
    assert asked == [("glue", "sst2", "test"), ("stanfordnlp", "sst2", None), ("stanfordnlp/sst2", None, None)]
    with says(BadData, about="no file 'dev.tsv'"):
        read_table("dev.tsv", "label")
    (tmp_path / "glue").mkdir()
    with says(BadData, about="no file 'glue/dev'"):  # a local folder is never handed to datasets
        read_table("glue/dev", "label")
    assert len(asked) == 3
    with says(BadData, about="choose with split= among train, test"):
        read_table(datasets.DatasetDict(train=data, test=data), "label")


def test_folders(tmp_path: Path, write: Any) -> None:
    for name in ("dog/2.png", "cat/1.jpg", "cat/0.JPEG", "cat/notes.txt"):
        write(name, b"x")
    sheet = read_sheet(tmp_path)
    assert [path.name for path in sheet.column("image")] == ["0.JPEG", "1.jpg", "2.png"]
    assert (sheet.column("label"), sheet.classes) == ([0, 0, 1], {"label": ("cat", "dog")})
    with says(BadData, about="0.JPEG, 1.jpg, notes.txt"):
        read_table(tmp_path / "cat", "label")
    with says(BadData, about="has no split"):
        read_table(write("a.tsv", "text\tlabel\na\t1\n"), "label", split="dev")


# --- drawing --------------------------------------------------------------------------------------------------------


def test_a_limit_draws_by_the_seed_and_larger_limits_contain_smaller_ones() -> None:
    assert drawn_numbers(10, 4, None) == [0, 1, 2, 3]
    small, large = drawn_numbers(1000, 20, 0), drawn_numbers(1000, 50, 0)
    assert small == sorted(small)
    assert set(small) < set(large)
    assert small != drawn_numbers(1000, 20, 1)
    assert max(small) > 500
    assert drawn_numbers(3, 50, 0) == [0, 1, 2]
    with says(BadData, about="limit is 0"):
        drawn_numbers(3, 0, 0)


def test_drawn_rows_say_where_they_came_from_and_remember_all_classes(write: Any) -> None:
    rows = "".join(
        f"sentence number {number} is a long one, and it goes on and on like the others\t{number % 3}\n"
        for number in range(40)
    )
    table = read_table(write("SST-2/dev.tsv", "sentence\tlabel\n" + rows), "label").drawn(2, 0)
    assert table.name == "SST-2/dev.tsv"
    assert table.classes == {"0": 14, "1": 13, "2": 13}
    row = table.rows[1]
    assert "'a b'" in read_table([{"text": "a\nb", "label": 1}], "label").place(0)
    assert table.texts[0][1].startswith(f"sentence number {row - 1} ")
    assert (
        table.place(1) == f"row {row} of dev.tsv: 'sentence number {row - 1} is a long one, and it goes on and on l...'"
    )


# --- labels to outputs ----------------------------------------------------------------------------------------------


class _Config:
    def __init__(self, *names: str) -> None:
        self.id2label = dict(enumerate(names))


def test_names_of_a_model_count_unless_they_are_made_up() -> None:
    assert model_labels(_Config("NEGATIVE", "POSITIVE"), 2) == ("NEGATIVE", "POSITIVE")
    assert model_labels(_Config("LABEL_0", "LABEL_1"), 2) is None
    assert model_labels(_Config("a", "b"), 3) is None
    assert model_labels(object(), 2) is None


def test_labels_are_matched_by_name_whatever_the_case_and_the_dashes() -> None:
    names = ("CONTRADICTION", "Not Entailment", "entail-ment")
    found = outputs_of({"not_entailment": 5, "Contradiction": 5, "entail ment": 5}, 3, source="x", model_names=names)
    assert found == {"not_entailment": 1, "Contradiction": 0, "entail ment": 2}


def test_names_that_the_data_gives_to_numbers_are_matched_too() -> None:
    # entailment is 0 in the data and 2 in the model: by number, accuracy would be nonsense
    data = ("entailment", "neutral", "contradiction")
    model = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
    found = outputs_of({"0": 9, "1": 9, "2": 9}, 3, source="x", data_names=data, model_names=model)
    assert found == {"0": 2, "1": 1, "2": 0}
    assert outputs_of({"0": 90, "1": 9}, 3, source="x", data_names=data) == {"0": 0, "1": 1}
    with says(BadData, about="'neg', 'pos' and the model's are 'NEGATIVE', 'POSITIVE'"):
        outputs_of({"0": 9, "1": 9}, 2, source="x", data_names=("neg", "pos"), model_names=("NEGATIVE", "POSITIVE"))
    found = outputs_of(
        {"0": 9, "1": 9}, 2, source="x", data_names=("neg", "pos"), model_names=("a", "b"), user_names=("pos", "neg")
    )
    assert found == {"0": 1, "1": 0}


def test_given_labels_are_in_the_order_of_the_outputs() -> None:
    assert outputs_of({"no": 9, "yes": 9}, 2, source="x", user_names=["yes", "no"]) == {"no": 1, "yes": 0}
    assert outputs_of({"1": 90, "2": 90}, 2, source="x", user_names=["1", "2"]) == {"1": 0, "2": 1}
    assert outputs_of({"0": 90, "1": 90}, 3, source="x", user_names=["a", "b", "c"]) == {"0": 0, "1": 1}
    with says(BadData, about="2 different names and the model has 3 outputs"):
        outputs_of({"no": 9, "yes": 9}, 3, source="x", user_names=["yes", "no"])
    with says(BadData, about="labels= has only 'yes', 'no'"):
        outputs_of({"maybe": 9, "yes": 9}, 2, source="x", user_names=["yes", "no"])


@pytest.mark.parametrize(
    ("classes", "outputs", "names", "about"),
    [
        ({"entailment": 60, "not_entailment": 60}, 2, None, "2 outputs without names; pass labels="),
        (
            {"good": 60, "bad": 60},
            2,
            ("negative", "positive"),
            "'good', 'bad' and the model's are 'negative', 'positive'",
        ),
        ({"0": 60, "3": 60}, 3, None, "has the label 3 and the model has the outputs 0 to 2"),
        ({"-1": 60, "0": 60, "1": 60}, 2, None, "has the label -1"),
        ({"1": 60, "2": 60, "3": 60}, 3, None, "count from 1 to 3"),
        ({"0": 60, "1": 60}, 3, ("a", "b", "c"), "2 different labels ('0', '1') and the model has 3 outputs"),
    ],
)
def test_labels_that_do_not_fit_the_model(classes: Any, outputs: int, names: Any, about: str) -> None:
    with says(BadData, about=about):
        outputs_of(classes, outputs, source="dev.tsv", model_names=names)


def test_few_examples_may_lack_a_class_and_named_ones_always_may() -> None:
    assert outputs_of({"0": 20, "1": 20}, 3, source="x") == {"0": 0, "1": 1}
    assert outputs_of({"b": 60, "a": 60}, 3, source="x", model_names=("a", "b", "c")) == {"b": 1, "a": 0}
    assert Labels("x", {"0": 3, "4": 2}).size == 5
    assert Labels("x", {"a": 3}, given=("a", "b", "c")).size == 3
    assert Labels("x", {"b": 1, "a": 1}).outputs_for(_Config("B", "A"), 2) == (1, 0)


# --- other delimiters, no header, large and damaged files -----------------------------------------------------------

SENTENCES = ["a good film", "a bad film", "quite good, really", "very bad", "so good", "so bad"]


@pytest.mark.parametrize(("delimiter", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "")])
def test_the_delimiter_of_a_csv_file_is_told_and_said(write: Any, delimiter: str, name: str) -> None:
    rows = [("sentence", "label"), *((f'"{text}"', number % 2) for number, text in enumerate(SENTENCES))]
    table = read_table(write("a.csv", "".join(f"{text}{delimiter}{label}\n" for text, label in rows)), "label")
    assert _seen(table) == [(text, str(number % 2)) for number, text in enumerate(SENTENCES)]
    assert [f"parted by {name}" in note for note in table.notes] == [True] * bool(name)


def test_commas_part_the_cells_where_they_can(write: Any) -> None:
    table = read_table(write("a.csv", "text,label\na;b,1\nc;d,0\n"), "label")
    assert (_seen(table), table.notes) == ([("a;b", "1"), ("c;d", "0")], ())
    with says(BadData, about="Line 2 of"):  # neither parts the rows evenly
        read_table(write("a.csv", "text,label\na,b,1\nc;d,0\n"), "label")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("labels", ["01", "10.5", ("good", "bad")], ids=["numbers", "scores", "words"])
@pytest.mark.parametrize("first", [True, False])
def test_two_columns_without_a_header_are_a_text_and_a_label(write: Any, name: str, labels: Any, first: bool) -> None:
    delimiter = "," if name == "a.csv" else "\t"
    values = ["1", "0.5"] if labels == "10.5" else list(labels)
    rows = [(f'"{text}"' if name == "a.csv" else text, values[number % 2]) for number, text in enumerate(SENTENCES)]
    content = "".join(delimiter.join(row[::-1] if first else row) + "\n" for row in rows)
    table = read_table(write(name, content), "label")
    assert _seen(table) == [(text, values[number % 2]) for number, text in enumerate(SENTENCES)]
    (note,) = table.notes
    assert note.endswith(
        f"has no header: column {1 + first} is taken for the text and column {2 - first} for the label"
    )


@pytest.mark.parametrize(
    "content",
    [
        "utterance\tmood\na film\tgood\nthe film\tbad\nfilm it is\tgood\n",  # a header, with names that nobody knows
        "a film\tthe war\na song\tthe war\n",  # nothing says which is the label
        "7\tgood film\t1\n8\tbad film\t0\n",  # three columns
        "7\t1\n8\t0\n",  # no text
        "good film\t1\nbad film\tbad\n",  # a label that no other example has
    ],
    ids=["header", "two texts", "three columns", "numbers alone", "labels alone"],
)
def test_what_is_not_plain_to_see_is_not_guessed(write: Any, content: str) -> None:
    with says(BadData, about="which column of"):
        read_table(write("a.tsv", content), "label")


def test_rows_of_texts_and_labels_are_taken_as_such() -> None:
    pairs = [("a good film", 1), ("a bad film", 0)]
    assert _seen(read_table(pairs, "label")) == [("a good film", "1"), ("a bad film", "0")]
    assert read_table([list(row) for row in pairs], "number").labels == [1.0, 0.0]
    assert _seen(read_table([("a", "b", "yes")], "label")) == [("a", "b", "yes")]
    assert _seen(read_table([("ein Film", "a film")], "target")) == [("ein Film", "a film")]
    for data, wants in (([("a", 1), ("b",)], "label"), ([(1, "a")], "label"), ([("a", 1)], "text")):
        with says(BadData, about="what stands where"):
            read_table(data, wants)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '{"text": "a", "label": ' + "[" * 100_000])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_that_is_nested_too_deeply_is_refused_in_a_sentence(write: Any, name: str, content: str) -> None:
    with says(BadData, about="nested too deeply for a table"):
        read_table(write(name, content), "label")


@pytest.fixture
def small_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("MOST_UNPACKED", 40_000), ("ENOUGH_TO_DRAW", 8_000), ("PIECE", 1_000)):
        monkeypatch.setattr(text_files, name, size)


ROWS = "sentence\tlabel\n" + "".join(f"film {number:05}\t{number % 2}\n" for number in range(9_000))  # 126 kB


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
@pytest.mark.usefixtures("small_caps")
def test_a_compressed_file_is_unpacked_no_further_than_is_needed(write: Any, pack: Any) -> None:
    path = write("a.tsv.packed", pack(ROWS.encode()))
    with says(BadData, about="unpacks to more than"):
        read_table(path, "label")
    table = read_table(path, "label", limit=16)
    assert 16 < len(table) < 700, "some rows to draw from"
    assert _seen(table)[-1][0] == f"film {len(table) - 1:05}", "whole lines"
    assert "the examples are drawn from these" in table.notes[0]
    more = read_table(path, "label", limit=2_000)
    assert 2_000 <= len(more) < 2_200
    with says(BadData, about="unpacks to more than"):
        read_table(path, "label", limit=8_000)
    plain = write("a.tsv", ROWS)
    assert (len(read_table(plain, "label", limit=16)), read_table(plain, "label", limit=16).notes) == (9_000, ())
    short = write("b.tsv.packed", pack("\n".join(ROWS.split("\n")[:30]).encode()))
    assert read_table(short, "label", limit=16).notes == ()


@pytest.mark.usefixtures("small_caps")
def test_one_endless_line_and_json_are_refused_too(write: Any) -> None:
    for name, content in (("a.txt", "a " * 100_000), ("a.json", '[{"text": "a",\n"label": 1}' + "\n" * 100_000 + "]")):
        with says(BadData, about="unpacks to more than"):
            read_table(write(f"{name}.gz", gzip.compress(content.encode())), "text", limit=3)


@pytest.mark.parametrize("longer", range(0, 40, 3))
@pytest.mark.usefixtures("small_caps")
def test_a_row_of_csv_that_is_broken_off_is_left_out(write: Any, longer: int) -> None:
    """Wherever in it the piece that was read ends: a line is no row where a cell has a line break."""
    rows = [f'"{"x" * longer}"', *(f'"line one\nline two of {number}"' for number in range(3_000))]
    content = "text,label\n" + "".join(f"{text},{number % 2}\n" for number, text in enumerate(rows))
    table = read_table(write("a.csv.gz", gzip.compress(content.encode())), "label", limit=4)
    assert len(table) < 400
    assert table.texts[0][-1] == f"line one\nline two of {len(table) - 2}"
