"""Tables with a label column: CSV, Parquet, labels that are texts, and a share held out for testing."""

import gzip
import sys

import numpy as np
import pytest

from pisco import data
from pisco.errors import InputError
from pisco.experiments import load

PETS = "kilos,legs,pet\n4.5,4,cat\n0.1,2,bird\n30,4,dog\n5,4,cat\n"


def write(folder, text, name="pets.csv"):
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_texts_are_numbered_in_sorted_order_and_kept(tmp_path):
    read = data.load(write(tmp_path, PETS))
    assert read.name == "pets" and read.classes == ("bird", "cat", "dog")
    assert read.labels.tolist() == [1, 0, 2, 1] and read.features.dtype == np.float32
    np.testing.assert_allclose(read.features[:2], [[4.5, 4], [0.1, 2]], rtol=1e-6)


def test_the_label_column_is_the_one_named_else_label_else_the_last(tmp_path):
    path = write(tmp_path, "\ufeffa,label,b\r\n1,300,3\r\n\r\n-4,5,127\r\n")
    read = data.load(path)
    assert read.labels.tolist() == [300, 5] and read.classes is None
    assert read.features.tolist() == [[1, 3], [-4, 127]] and read.features.dtype == np.int8
    assert data.load(path, label="b").labels.tolist() == [3, 127]
    assert data.load(path, label="b", drop=["a"]).features.tolist() == [[300.0], [5.0]]


def test_quotes_and_compressed_files(tmp_path):
    path = write(tmp_path, gzip.compress(b'x,"what, it is"\n1,"a, b"\n2,"c"\n'), "pets.csv.gz")
    assert data.load(path).classes == ("a, b", "c")


def test_tabs_separate_the_columns_of_a_tsv(tmp_path):
    """It was read as LIBSVM text, whose message says nothing of columns."""
    path = write(tmp_path, PETS.replace(",", "\t"), "pets.tsv")
    read, same = data.load(path), data.load(write(tmp_path, PETS))
    np.testing.assert_array_equal(read.features, same.features)
    assert read.classes == same.classes and read.columns == same.columns
    packed = write(tmp_path, gzip.compress(path.read_bytes()), "packed.tsv.gz")
    np.testing.assert_array_equal(data.load(packed).features, same.features)
    with pytest.raises(InputError, match="are separated by ','; separate them with tabs"):
        data.load(write(tmp_path, PETS, "commas.tsv"))
    assert len(data.load(write(tmp_path, PETS, "was.tsv.csv")).labels) == 4  # the last ending counts


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "has no samples"),
        ("a,b\n", {}, "has no samples"),
        ("a,b\n1,2\n1,2,3\n", {}, "line 3 of"),
        ("a,b\n1,2\n1\n", {}, "has 1 value, expected 2"),
        ("1,2\n3,4\n", {}, "expected the names of the columns"),
        ("a,a\n3,4\n", {}, "two columns 'a'"),
        ("a\n3\n", {}, "no column beside the label 'a'"),
        ("a;label\n1,5;x\n", {}, "separated by ';'; separate them with commas"),
        ("a\tlabel\n1\tx\n", {}, "are separated by"),
        (",a,label\n0,1,x\n1,2,y\n", {}, "column 1 of"),
        ("age,city,outcome\n1,2,3\n", {"label": "outcom"}, "has no column 'outcom'; did you mean 'outcome'?"),
        ("age,city,outcome\n1,2,3\n", {"drop": ["town"]}, "has no column 'town'"),
        ("age,city,outcome\n1,2,3\n", {"drop": "age"}, "expected a list of columns"),
        ("age,city,y\n1,2,3\n1,Rome,3\n", {}, "column 'city' of"),
        ("age,city,y\n1,2,3\n1,Rome,3\n", {}, "such as 'Rome' (row 2)"),
        ("age,y\n1,2\nnan,2\n", {}, "row 2 of"),
        ("age,y\n1,2\n,2\n", {}, "has nan in column 'age'"),
        ("age,y\n1,2\n1e39,2\n", {}, "expected a finite number"),
        ("age,y\n1,a\n2,\n", {}, "row 2 of"),
        ("age,y\n1,1\n2,\n", {}, "has nan in column 'y'"),
        ("age,y\n1,1\n2,0.5\n", {}, "has the label 0.5 in 'y'"),
        ('age,y\n1,"1\n2,2\n', {}, "is not CSV text"),
        (b"age,y\n\xff,1\n", {}, "is not CSV text"),
        (PETS, {"lable": "pet"}, "has no option 'lable'; did you mean 'label'?"),
        (PETS, {"test": "half"}, "test is 'half', expected a number"),
        (PETS, {"test": 0}, "test is 0.0, expected a number greater than 0"),
        (PETS, {"test": 0.5}, "too few for test = 0.5"),
    ],
)
def test_bad_tables_get_one_sentence(tmp_path, text, options, words):
    with pytest.raises(InputError) as caught:
        data.load(write(tmp_path, text), **options)
    said = str(caught.value)
    assert words in said and "\n" not in said


def test_a_table_that_is_not_there(tmp_path):
    for name in ("no.csv", "no.parquet"):
        with pytest.raises(InputError, match=name):
            data.load(tmp_path / name)


def test_held_out_samples_are_drawn_by_the_seed(tmp_path):
    rows = [f"{i},{'rare' if i == 7 else 'often'}" for i in range(50)]
    path = write(tmp_path, "\n".join(["i,kind", *rows]))
    first, again, other = (data.load(path, test=0.2, seed=seed) for seed in (1, 1, 2))
    held = first.test_features[:, 0].tolist()
    assert len(held) == 10 and sorted(held + first.features[:, 0].tolist()) == list(range(50))
    assert held == again.test_features[:, 0].tolist() != other.test_features[:, 0].tolist()
    # The only sample of a label is always trained on.
    for seed in range(20):
        split = data.load(path, test=0.9, seed=seed)
        assert 7 in split.features[:, 0] and len(split.test_labels) == 45


def test_any_dataset_without_a_test_part_can_hold_some_out(tmp_path):
    np.savez(tmp_path / "d.npz", features=np.eye(10), labels=[0, 1] * 5)
    assert len(data.load(tmp_path / "d.npz", test=0.3).test_labels) == 3
    (tmp_path / "d").write_text("1 1:1\n0 2:1\n" * 5)
    assert data.load(tmp_path / "d", test=0.3, num_features=4).test_features.shape == (3, 4)
    with pytest.raises(InputError, match="a9a has a test part of its own"):
        data.load("a9a", test=0.2)


def test_groups_follow_their_samples_and_are_checked():
    groups = np.arange(10) % 3
    part = data.Dataset("d", np.arange(10), [0, 1] * 5, groups=groups).hold_out(0.3)
    np.testing.assert_array_equal(part.groups, groups[part.features])
    with pytest.raises(InputError, match="2 samples and 1 groups"):
        data.Dataset("d", [1, 2], [0, 1], groups=[0])


def test_parquet_is_read_as_the_same_table_would_be(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    csv, path = write(tmp_path, PETS), write(tmp_path, b"", "pets.parquet")
    monkeypatch.setattr(pandas, "read_parquet", lambda asked: pandas.read_csv(csv))
    one, two = data.load(csv), data.load(path)
    np.testing.assert_array_equal(one.features, two.features)
    assert one.classes == two.classes and one.labels.tolist() == two.labels.tolist()
    gaps = pandas.DataFrame({"a": [1.0, None], "y": ["u", None]})
    monkeypatch.setattr(pandas, "read_parquet", lambda asked: gaps)
    with pytest.raises(InputError, match=r"row 2 of .* has nan in column 'a'"):
        data.load(path)
    gaps["a"] = [1.0, 2.0]
    with pytest.raises(InputError, match=r"row 2 of .* has no label in 'y'"):
        data.load(path)


def test_parquet_without_its_packages_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"needs pandas and pyarrow; install both, or save the table as \.csv"):
        data.load(write(tmp_path, b"", "t.parquet"))


def test_real_parquet_files(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pandas

    frame = pandas.read_csv(write(tmp_path, PETS))
    frame.to_parquet(tmp_path / "pets.parquet")
    read = data.load(tmp_path / "pets.parquet", test=0.25)
    assert read.classes == ("bird", "cat", "dog") and len(read.test_labels) == 1
    with pytest.raises(InputError, match="not a readable Parquet file"):
        data.load(write(tmp_path, b"PAR1 no", "t.parquet"))


def test_a_table_in_an_experiment_file(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rng.normal(size=(100, 2))]
    write(tmp_path, "\n".join(["a,b,won", *rows]), "games.csv")
    write(
        tmp_path,
        """
        [algorithm]
        name = "dsgd"
        local_lr = 0.1
        [problem]
        name = "logistic"
        dataset = "games.csv"
        dataset_options = { label = "won", test = 0.2, seed = 3 }
        [network]
        graph = "ring"
        agents = 4
        [run]
        rounds = 2
        """,
        "games.toml",
    )
    problem, _ = load(tmp_path / "games.toml").problem_and_network()
    assert problem.num_samples == 80 and problem.num_test == 20
    # Options go with the dataset that they were written for.
    other = load(tmp_path / "games.toml", ["problem.dataset='a9a'"])
    assert other.problem.dataset_options == {}
    with pytest.raises(InputError, match="has no column 'lost'"):
        load(tmp_path / "games.toml", ["problem.dataset_options.label='lost'"]).problem_and_network()


def test_members_of_a_federation_number_their_labels_themselves(tmp_path):
    from pisco.federation.shared_problem import read_problem

    with pytest.raises(InputError, match=r"has texts as labels \(bird, cat, dog, …\)"):
        read_problem(None, write(tmp_path, PETS), None)
