"""Writes src/icestream/metadata/etcd/messages.py and .pyi from etcd's own protocol files.

    .venv/bin/python dev/make_etcd_stubs.py [FOLDER]

The files come from the Go module `go.etcd.io/etcd/api/v3` at `VERSION`, through `go mod download`, or from a FOLDER
that holds that module. What the messages do not need (imports and options for Go and for HTTP gateways) is taken out,
and the files become one, in a package of our own.

What is written is the compiled description of the messages and not protoc's Python: that is tied to one major version
of protobuf, and puts its names where another etcd client in the same process may have put them before.
"""

import base64
import importlib.resources
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]

MODULE = "go.etcd.io/etcd/api/v3"
VERSION = "v3.6.16"
FILES = ("mvccpb/kv.proto", "authpb/auth.proto", "etcdserverpb/rpc.proto")
TARGET = Path(__file__).parent.parent / "src" / "icestream" / "metadata" / "etcd"

_FOREIGN_FIELD_OPTIONS = re.compile(r"\s*\[\s*\([^\]]*\]")
_PYTHON = '''"""etcd's protocol messages, made by dev/make_etcd_stubs.py from {module} {version}: do not edit.

They live in a descriptor pool of their own, so no other etcd client in the process can collide with them, and are built
by whichever protobuf is installed.
"""

import base64

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()
_FILE = descriptor_pb2.FileDescriptorProto.FromString(
    base64.b64decode("""
{description}
""")
)

_POOL.Add(_FILE)
globals().update(
    {{
        name: message_factory.GetMessageClass(found)
        for name, found in _POOL.FindFileByName(_FILE.name).message_types_by_name.items()
    }}
)
'''


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else downloaded()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "messages.proto").write_text(merged([(source / file).read_text() for file in FILES]))
        well_known = importlib.resources.files("grpc_tools") / "_proto"
        options = [f"-I{folder}", f"-I{well_known}", f"--pyi_out={folder}", f"--descriptor_set_out={folder}/set"]
        if protoc.main(["protoc", *options, "messages.proto"]):
            sys.exit("protoc failed")
        description = FileDescriptorSet.FromString((folder / "set").read_bytes()).file[0]
        description.name = "icestream/etcd/messages.proto"
        text = "\n".join(textwrap.wrap(base64.b64encode(description.SerializeToString()).decode(), 118))
        (TARGET / "messages.py").write_text(_PYTHON.format(module=MODULE, version=VERSION, description=text))
        (TARGET / "messages.pyi").write_text(typed((folder / "messages_pb2.pyi").read_text()))


def downloaded() -> Path:
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Path(answer["Dir"])


def typed(stub: str) -> str:
    """Add the types that a strict type checker needs and protoc leaves out."""
    return stub.replace("_Mapping]", "_Mapping[str, object]]")


def merged(files: list[str]) -> str:
    """Return a single file with the messages alone."""
    body = "\n".join(without_services(without_options(file)) for file in files)
    plain = re.sub(r"\b(mvccpb|authpb)\.", "", _FOREIGN_FIELD_OPTIONS.sub("", body))
    dropped = re.compile(r"^\s*(syntax|package|import)\b.*;$", re.MULTILINE)
    return 'syntax = "proto3";\npackage icestream.etcd;\n' + dropped.sub("", plain)


def without_options(text: str) -> str:
    return without_statements(text, re.compile(r"^\s*option\b[^;{]*", re.MULTILINE))


def without_services(text: str) -> str:
    """Remove the services: `calls.py` has the paths of the calls, with etcd's own package name."""
    return without_statements(text, re.compile(r"^service\b[^{]*", re.MULTILINE))


def without_statements(text: str, beginning: re.Pattern[str]) -> str:
    kept = []
    while found := beginning.search(text):
        kept.append(text[: found.start()])
        text = text[end_of_statement(text, found.end()) :]
    return "".join([*kept, text])


def end_of_statement(text: str, position: int) -> int:
    """Return the position after the semicolon or the closing brace that ends the statement."""
    depth = 0
    for place in range(position, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return place + 2 if text[place + 1 : place + 2] == ";" else place + 1
        elif text[place] == ";" and depth == 0:
            return place + 1
    raise ValueError("a statement has no end")


if __name__ == "__main__":
    main()
