"""Capture logs and small files by path and by URI, in a folder and on a server with S3's interface."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater_host.capture import CaptureReader, verify
from headwater_host.capture.filesystem import (
    LocationError,
    create,
    folder,
    is_remote,
    local_path,
    open_file,
    parse_storage,
    remove,
)
from headwater_host.capture.log_id import log_id
from headwater_host.capture.manifest import list_log
from tests.host.capture_logs import read_log, reopen_last, write_log
from tests.object_store import Bucket
from tests.rows import each_row


@each_row(
    "location, path",
    [
        ("/log", "/log"),
        ("log", "log"),
        ("file:///a/log", "/a/log"),
        ("file:/a/log", "/a/log"),
        ("a:b", "a:b"),
        (Path("/log"), "/log"),
    ],
)
def test_locations_on_this_machine(location: str | Path, path: str) -> None:
    assert not is_remote(location)
    assert local_path(location) == Path(path)


def test_a_uri_is_no_local_path() -> None:
    assert is_remote("s3://bucket/log")
    with pytest.raises(LocationError, match="needs a directory of this machine"):
        local_path("s3://bucket/log")


@each_row(
    "location, message",
    [
        ("s3:///log", "the bucket is missing"),
        ("s3://bucket/log?region=x", "give storage options by name"),
        *(
            (uri, "this URI cannot be read; use a directory or s3://bucket/prefix")
            for uri in ("http://host/log", "s4://bucket/log", "gs://a b", "abfs://x", "hdfs://")
        ),
    ],
)
def test_invalid_locations(location: str, message: str) -> None:
    with pytest.raises(LocationError, match=message):
        folder(location)


def test_invalid_storage_options() -> None:
    with pytest.raises(LocationError, match="no storage option 'endpoint'; there are AWS_ACCESS_KEY_ID"):
        parse_storage({"endpoint": "http://127.0.0.1"})
    storage = parse_storage({"aws_endpoint_url": "127.0.0.1:9000", "AWS_REGION": "eu-central-1"})
    assert storage == (("AWS_ENDPOINT_URL", "127.0.0.1:9000"), ("AWS_REGION", "eu-central-1"))
    with pytest.raises(LocationError, match=r"AWS_ENDPOINT_URL=127.0.0.1:9000: expected http://HOST:PORT"):
        folder("s3://bucket/log", storage)


def test_a_log_is_the_same_by_path_and_by_uri(tmp_path: Path, bucket: Bucket) -> None:
    written = write_log(tmp_path, [3, 2], [1, 4, 400], [7])
    uri = bucket.upload(tmp_path)
    reader = CaptureReader(uri, storage=bucket.storage)
    assert list(reader.records()) == written
    assert reader.problems == []
    assert verify(uri, storage=bucket.storage) == verify(tmp_path)
    assert log_id(uri, bucket.storage) == log_id(tmp_path)
    assert [one.location for one in list_log(uri, bucket.storage).segments] == [
        f"{uri}/{one.name}" for one in list_log(tmp_path).segments
    ]


def test_damage_is_the_same_by_path_and_by_uri(tmp_path: Path, bucket: Bucket) -> None:
    write_log(tmp_path, [3, 2], [1, 4, 4], [7, 7])
    names = [segment.path for segment in list_log(tmp_path).segments]
    data = bytearray(names[0].read_bytes())
    data[70] ^= 1
    names[0].write_bytes(data)
    names[1].write_bytes(names[1].read_bytes()[:-30])
    path = reopen_last(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    uri = bucket.upload(tmp_path)
    report = verify(uri, storage=bucket.storage)
    assert report == verify(tmp_path)
    assert report.damaged
    assert report.torn
    assert list(CaptureReader(uri, storage=bucket.storage).records()) == read_log(tmp_path)


def test_without_a_log(bucket: Bucket) -> None:
    with pytest.raises(FileNotFoundError, match="no capture log in s3://"):
        list_log(f"{bucket.uri}/none", bucket.storage)
    with pytest.raises(FileNotFoundError, match="no capture log in s3://"):
        log_id(f"{bucket.uri}/none", bucket.storage)
    with pytest.raises(OSError, match="bucket does not exist"):
        list_log("s3://no-such-bucket/log", bucket.storage)


def test_files_of_any_size_are_read_in_pieces(bucket: Bucket) -> None:
    data = bytes(range(256)) * 5000
    target = folder(f"{bucket.uri}/deep/er", bucket.storage)
    target.write("file", [data[:1000], data[1000:]])
    assert (target.names(), target.size("file"), target.read("file")) == (["file"], len(data), data)
    file = open_file(target.locate("file"), bucket.storage)
    assert (file.pread(10, 250), file.pread(10, len(data) - 4), file.pread(10, len(data))) == (
        data[250:260],
        data[-4:],
        b"",
    )
    file.close()
    for missing in (target.size, target.read):
        with pytest.raises(FileNotFoundError):
            missing("none")
    with pytest.raises(FileNotFoundError):
        open_file(target.locate("none"), bucket.storage)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Bucket]:
    bucket: Bucket = request.getfixturevalue("bucket")
    return (str(tmp_path) if request.param == "folder" else bucket.uri), bucket


def test_a_file_is_created_once(place: tuple[str, Bucket]) -> None:
    location, bucket = place
    plan = f"{location}/1.json"

    def attempt(k: int) -> bool:
        return create(plan, b"%d" % k, bucket.storage)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(attempt, range(8)))
    assert sum(made) == 1
    target = folder(location, bucket.storage)
    assert target.read("1.json") == b"%d" % made.index(True)
    assert not create(plan, b"later", bucket.storage)
    assert target.names() == ["1.json"]


def test_a_file_is_removed(place: tuple[str, Bucket]) -> None:
    location, bucket = place
    for _ in range(2):
        assert create(f"{location}/folder/1.json", b"1", bucket.storage)
        remove(f"{location}/folder/1.json", bucket.storage)
        assert folder(f"{location}/folder", bucket.storage).names() == []
    remove(f"{location}/folder/1.json", bucket.storage)


def test_errors_of_an_object_store_have_one_line(bucket: Bucket) -> None:
    with pytest.raises(OSError, match=r"^s3://no-such-bucket/1: The specified bucket does not exist$"):
        create("s3://no-such-bucket/1", b"", bucket.storage)
    away = parse_storage(bucket.options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(OSError, match=r"^s3://bucket/1: [^\n]*error sending request$"):
        create("s3://bucket/1", b"", away)
    for wrong in ("127.0.0.1", "http://", "http://a b", "http://a/b", "ftp://a"):
        storage = parse_storage(bucket.options | {"AWS_ENDPOINT_URL": wrong})
        with pytest.raises(LocationError, match="expected http://HOST:PORT"):
            create("s3://bucket/1", b"", storage)
        with pytest.raises(LocationError, match="expected http://HOST:PORT"):
            folder("s3://bucket", storage)


def test_paths_do_not_need_pyarrow(tmp_path: Path) -> None:
    write_log(tmp_path, [3])
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from headwater_host.cli.main import main\n"
        f"assert main(['capture', 'verify', {str(tmp_path)!r}]) == 0\n"
        "sys.exit(main(['capture', 'verify', 's3://bucket/log']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "headwater: object stores need pyarrow: pip install 'headwater[s3]'\n",
    )
