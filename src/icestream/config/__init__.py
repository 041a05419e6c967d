"""Settings: one immutable tree from defaults, a YAML file, the environment and flags.

Guarantees:

- `Settings()` holds the embedded defaults, everything under `data_dir`. It reads neither a file nor the environment.
- `load_settings` takes each setting from the last of default, file, environment variable, flag that gives it.
- Wrong input raises one `SettingsError` with all problems. Each problem is a sentence that names the key as it was
  written, its origin, the value, and what is allowed. No unknown key is ignored.
- Secrets appear in no repr, error or listing.

Example::

    settings = load_settings(Path("icestream.yaml"), {"server.flight_port": 0})
    settings.wal.sync_mode

`broker`, `wal`, `metadata`, `table`, `pipeline`, `cloud` and `telemetry` define the sections: names, defaults, bounds
and descriptions. `settings` is the root. `tree` reads the definitions as data. `sources` reads file, environment and
flags, `load` joins them, `show` prints settings and their reference.
"""

from icestream.config.broker import (
    AuthSettings,
    LogSettings,
    QuerySettings,
    ServerSettings,
    SubscriptionSettings,
    TopicSettings,
)
from icestream.config.cloud import CloudRetentionSettings, CloudSettings, UploaderSettings
from icestream.config.fields import MASK, SettingProblem, SettingsError, mask_text
from icestream.config.load import Loaded, load_settings, load_with_origins
from icestream.config.metadata import MetadataSettings
from icestream.config.pipeline import MaintenanceSettings, PipelineSettings
from icestream.config.settings import Settings, is_within
from icestream.config.show import reference, to_tree, to_yaml
from icestream.config.table import (
    CatalogSettings,
    ObjectStoreSettings,
    ReaderSettings,
    StorageSettings,
    TableSettings,
    WriterSettings,
)
from icestream.config.telemetry import ENGINE_COLUMNS, RESERVED_NAMESPACES, TelemetrySettings
from icestream.config.wal import FileSyncSettings, RetentionSettings, RotationSettings, WalSettings

__all__ = [
    "ENGINE_COLUMNS",
    "MASK",
    "RESERVED_NAMESPACES",
    "AuthSettings",
    "CatalogSettings",
    "CloudRetentionSettings",
    "CloudSettings",
    "FileSyncSettings",
    "Loaded",
    "LogSettings",
    "MaintenanceSettings",
    "MetadataSettings",
    "ObjectStoreSettings",
    "PipelineSettings",
    "QuerySettings",
    "ReaderSettings",
    "RetentionSettings",
    "RotationSettings",
    "ServerSettings",
    "SettingProblem",
    "Settings",
    "SettingsError",
    "StorageSettings",
    "SubscriptionSettings",
    "TableSettings",
    "TelemetrySettings",
    "TopicSettings",
    "UploaderSettings",
    "WalSettings",
    "WriterSettings",
    "is_within",
    "load_settings",
    "load_with_origins",
    "mask_text",
    "reference",
    "to_tree",
    "to_yaml",
]
