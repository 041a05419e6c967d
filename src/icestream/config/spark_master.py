"""What Spark takes for a master. Checked with the settings, because Spark itself answers with the stack of its JVM."""

from icestream.config.fields import Allowed

_COUNT = r"0*[1-9][0-9]*"
_LOCAL = rf"local(\[({_COUNT}|\*)( *, *{_COUNT})?\])?"
_LOCAL_CLUSTER = rf"local-cluster\[ *{_COUNT} *, *{_COUNT} *, *{_COUNT} *\]"
_ADDRESS = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.\-]+):[0-9]{1,5}"
_STANDALONE = rf"spark://{_ADDRESS}(,{_ADDRESS})*"

MASTER_PATTERN = rf"^({_LOCAL}|{_LOCAL_CLUSTER}|{_STANDALONE}|yarn|k8s://[^\s]+)$"
MASTER_TEXT = Allowed(
    "`local`, `local[N]`, `local[*]`, `local[N,M]` (N cores, M tries of a task), `local-cluster[N,CORES,MB]`, "
    "`spark://host:port` (several `host:port` with commas), `yarn` or `k8s://…`"
)
