"""From folders and from Hugging Face's datasets to a corpus; what is wrong with a folder is one line."""

import gzip
import io
import sys
import tarfile
import types

import pytest

from reproduce.arguments import run_script
from reproduce.text import __main__ as command
from reproduce.text import texts
from reproduce.text.corpora import BadText, load_corpus
from reproduce.text.texts import data_folder, named_corpus, source_named


@pytest.fixture
def parallel(tmp_path):
    for name, count in (("train", 6), ("val", 2), ("test_2016", 2), ("test_2017", 1)):
        for language, word in (("de", "Hund"), ("en", "dog")):
            lines = "".join(f"{word} {name} {k}\n" for k in range(count))
            (tmp_path / f"{name}.{language}.gz").write_bytes(gzip.compress(lines.encode()))
    return tmp_path


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "classes.txt").write_text("World\nSports\n")
    (tmp_path / "train_a.csv").write_text('Class Index,Title,Description\n1,Talks,"held, at last"\n2,Goal,scored\n')
    rows = "\n".join(f"1,0,text {k} about the world,3\n0,1,text {k} about a match,3" for k in range(20))
    (tmp_path / "train_b.csv").write_text(f"label,gt,text,group\n{rows}\n2,1,Goal . scored,1\n")
    (tmp_path / "test.csv").write_text('"2","Match","won<br />late"\n"1","text 3 about the world",""\n')
    return tmp_path


def test_two_files_a_split_are_a_translation(parallel, tmp_path, capsys):
    out = tmp_path / "out" / "corpus.safetensors"
    words = ["multi30k", "--folder", str(parallel), "--vocabulary", "300", "--out", str(out)]
    assert command.main(["corpus", *words]) == 0
    assert "6 to train, 2 to validation, 2 to test on" in capsys.readouterr().out
    corpus = load_corpus(out, "translation")
    assert corpus.split("test").references == ("dog test_2016 0", "dog test_2016 1")
    assert corpus.tokeniser.decode(corpus.split("train").texts[5]) == "Hund train 5"


def test_tables_give_classes_by_number_and_no_text_twice(tables):
    corpus = named_corpus("ag_news", 300, tables)
    assert corpus.classes == ("World", "Sports")
    held, train = len(corpus.split("validation")), len(corpus.split("train"))
    assert held == 2 and held + train == 42  # 1 twice in the tables
    test = corpus.split("test")
    assert corpus.tokeniser.decode(test.texts[0]) == "Match . won late"
    assert test.classes.tolist() == [1, 0]


def test_archives_of_reviews_have_their_class_in_the_path(tmp_path):
    for split in ("train", "val", "test"):
        for kind in ("neg", "pos"):
            with tarfile.open(tmp_path / f"aclImdb_{split}_{kind}.tar.gz", "w:gz") as archive:
                content = f"{kind} review of {split}<br />".encode()
                member = tarfile.TarInfo(f"aclImdb/{split}/{kind}/0_1.txt")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    corpus = named_corpus("imdb", 300, tmp_path)
    assert all(split.classes.tolist() == [0, 1] for split in corpus.splits.values())
    assert corpus.tokeniser.decode(corpus.split("validation").texts[1]) == "pos review of val"


class Rows(list):
    features = types.SimpleNamespace()


def test_where_there_is_no_folder_datasets_is_asked(monkeypatch, tmp_path):
    asked = []

    def load_dataset(name, configuration):
        asked.append((name, configuration))
        if "iwslt" in name:
            return {
                split: [{"translation": {"de": f"Hund {split}", "en": "dog"}}]
                for split in ("train", "validation", "test")
            }
        rows = Rows({"title": f"name {k}", "content": "words", "label": k % 2} for k in range(8))
        rows.features = {"label": types.SimpleNamespace(names=["Company", "Artist"])}
        return {"train": rows, "test": Rows([{"title": "other", "content": "words", "label": 1}])}

    monkeypatch.setattr(texts, "data_folder", lambda name: None)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    corpus = named_corpus("dbpedia", 300)
    assert corpus.classes == ("Company", "Artist") and corpus.split("test").classes.tolist() == [1]
    assert len(corpus.split("train")) == 7 and len(corpus.split("validation")) == 1
    assert len(named_corpus("iwslt", 300).split("train")) == 1
    assert asked == [("fancyzhx/dbpedia_14", None), ("IWSLT/iwslt2017", "iwslt2017-de-en")]

    def offline(name, configuration):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=offline))
    with pytest.raises(BadText, match=r"could not be had through datasets \(ConnectionError\)"):
        named_corpus("dbpedia", 300)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadText, match=r"pip install 'emulon\[text\]'"):
        named_corpus("dbpedia", 300)


def test_the_folder_is_found_where_emulon_data_says(monkeypatch, tmp_path):
    (tmp_path / "imdb").mkdir()
    monkeypatch.setenv("EMULON_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert data_folder("imdb") == tmp_path / "imdb" and data_folder("multi30k") is None


def test_what_is_wrong_with_a_folder_is_said_in_one_line(parallel, tables, tmp_path, capsys):
    def refused(name, folder):
        words = ["corpus", name, "--folder", str(folder), "--out", str(tmp_path / "c")]
        assert run_script("corpus", command.main, words) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    assert "there is no folder" in refused("imdb", tmp_path / "nowhere")
    (tables / "test.csv").write_text("9,no,such class\n")
    assert "line 1: there is no class '9'; they are 1 to 2" in refused("ag_news", tables)
    (tables / "test.csv").unlink()
    assert "holds no test*.csv" in refused("ag_news", tables)
    (parallel / "val.en.gz").write_bytes(gzip.compress(b"one line\n"))
    assert "2 lines of de and 1 of en" in refused("multi30k", parallel)
    (parallel / "val.en.gz").write_bytes(b"no gzip")
    assert "cannot be read as text" in refused("multi30k", parallel)
    (parallel / "val.en.gz").unlink()
    assert "holds no val*.en" in refused("multi30k", parallel)
    with pytest.raises(BadText, match="did you mean multi30k"):
        source_named("mutli30k")
