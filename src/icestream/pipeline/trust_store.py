"""Certificates for a packaged Java: a trust store with those that this machine trusts.

A Java from a package registry trusts the public authorities it was built with. Where a company's own certificate
stands between the machine and its package mirrors, Python and the system know it and such a Java does not.
"""

import hashlib
import re
import ssl
import struct
from pathlib import Path

PASSWORD = "changeit"  # noqa: S105  # Java's own default; a trust store holds nothing secret
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def write_trust_store(path: Path) -> bool:
    """Write the machine's certificates to `path`, for Java's `javax.net.ssl.trustStore`; False when it has none."""
    certificates = _machine_certificates()
    if certificates:
        path.write_bytes(_java_key_store(certificates))
    return bool(certificates)


def _machine_certificates() -> list[bytes]:
    """Those of OpenSSL's bundle and folder, as the environment (`SSL_CERT_FILE`, `SSL_CERT_DIR`) moves them."""
    places = ssl.get_default_verify_paths()
    files = [Path(places.cafile)] if places.cafile else []
    files += sorted(Path(places.capath).iterdir()) if places.capath and Path(places.capath).is_dir() else []
    texts = [file.read_text(errors="ignore") for file in files if file.is_file()]
    return sorted({ssl.PEM_cert_to_DER_cert(pem) for text in texts for pem in _PEM.findall(text)})


def _java_key_store(certificates: list[bytes]) -> bytes:
    """Java's own format (JKS): a header, the entries, and a digest over them that is salted with the password."""
    content = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        trusted_certificate, created_ms = 2, 0
        content += struct.pack(">I", trusted_certificate) + _text(f"machine-{number}") + struct.pack(">Q", created_ms)
        content += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salt = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return content + hashlib.sha1(salt + content, usedforsecurity=False).digest()


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()
