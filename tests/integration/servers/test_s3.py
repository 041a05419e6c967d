import threading

import pyarrow.fs
import pytest

from icestream_servers import S3Server


@pytest.fixture(scope="module")
def files(s3_server: S3Server) -> pyarrow.fs.S3FileSystem:
    return s3_server.file_system()


def test_an_object_is_put_read_and_listed(s3_server: S3Server, files: pyarrow.fs.S3FileSystem) -> None:
    path = f"{s3_server.bucket}/smoke/one"
    with files.open_output_stream(path) as out:
        out.write(b"some bytes")
    assert files.open_input_file(path).read() == b"some bytes"
    found = files.get_file_info(pyarrow.fs.FileSelector(f"{s3_server.bucket}/smoke", recursive=True))
    assert [(info.path, info.size) for info in found] == [(path, 10)]


def test_an_object_larger_than_one_part_is_read_back_whole(s3_server: S3Server, files: pyarrow.fs.S3FileSystem) -> None:
    content = bytes(range(256)) * 80_000  # 20 MB: several parts
    path = f"{s3_server.bucket}/smoke/large"
    with files.open_output_stream(path) as out:
        out.write(content)
    assert files.open_input_file(path).read() == content


def test_objects_are_there_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    with S3Server(tmp_path_factory.mktemp("killed")) as server:
        if not server.survives_restart:
            pytest.skip("moto's server keeps objects in memory")
        with server.file_system().open_output_stream(f"{server.bucket}/kept") as out:
            out.write(b"kept")
        server.kill()
        server.start()
        assert server.file_system().open_input_file(f"{server.bucket}/kept").read() == b"kept"


def test_a_paused_server_answers_when_it_is_resumed(s3_server: S3Server, files: pyarrow.fs.S3FileSystem) -> None:
    answered = threading.Event()

    def ask() -> None:
        files.get_file_info(f"{s3_server.bucket}/smoke/one")
        answered.set()

    s3_server.pause()
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert not answered.wait(0.3)
    finally:
        s3_server.resume()
    asking.join(60)
    assert answered.is_set()
