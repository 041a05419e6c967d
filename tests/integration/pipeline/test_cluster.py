"""A real Standalone cluster of two workers that share nothing with the driver but network, catalog and object store."""

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.pipeline.conftest import Pipelines

from icestream.broker_process import BrokerProcess
from icestream.config import load_settings
from icestream.table import Tables
from icestream_servers import S3Server, SparkCluster


def test_a_cluster_writes_to_an_object_store(tmp_path: Path, spark_cluster: SparkCluster, s3_server: S3Server) -> None:
    s3_server.create_bucket("cluster")
    fields = spark_cluster.settings() | s3_server.settings()
    fields["object_store"] |= {"bucket": "cluster"}
    fields["pipeline"] |= {"max_task_bytes": 8 << 20, "max_pass_bytes": 64 << 20}
    config = tmp_path / "settings.yaml"
    config.write_text(json.dumps(fields))
    with BrokerProcess(tmp_path / "data", arguments=["--no-pipeline", f"--config={config}"]) as broker:
        settings = load_settings(config, {"data_dir": broker.data_dir}, {})
        pipelines = Pipelines(broker.data_dir, broker.flight, "cluster", tables=Tables(settings))
        for _ in range(20):
            pipelines.publish("large", [bytes(1000)] * 1000)
        pipelines.publish("small", [b"a", b"b"])
        command = [sys.executable, "-m", "icestream.cli", "pipeline", "--once", "--json", f"--config={config}"]
        command += [f"--data={broker.data_dir}", f"--broker={broker.flight}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
        told = {topic["topic"]: topic for topic in json.loads(done.stdout)["topics"]}
        assert told["cluster/large"]["files"] >= 2
        pipelines.check("large")
        pipelines.check("small", [b"a", b"b"])
        pipelines.close()
