"""Files of a dataset: their footers are read once, and those of several files at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from hopyard.data.reading.stored import StoredFile
from hopyard.storage import open_store


def test_threads_read_the_footers_of_remote_files_at_once(tmp_path, monkeypatch):
    store = open_store("memory://footers")
    for number in range(2):
        pq.write_table(pa.table({"x": range(number + 1)}), tmp_path / "a.parquet")
        store.put(f"{number}.parquet", (tmp_path / "a.parquet").read_bytes())
    both = threading.Barrier(2, timeout=60)
    read = pq.read_metadata

    def together(source):
        both.wait()
        return read(source)

    monkeypatch.setattr(pq, "read_metadata", together)
    files = [StoredFile.open(store, f"{number}.parquet") for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert [footer.num_rows for footer in pool.map(lambda file: file.footer, files)] == [1, 2]
    monkeypatch.undo()
    assert all(file.footer is file.footer for file in files)
