"""Settings: one immutable tree from defaults, a YAML file, the environment and flags.

What it guarantees:

- `Settings()` alone is the embedded defaults, everything under `data_dir`; it reads neither file nor environment.
- `load_settings` takes, for each setting, the last of default < file < environment variable < flag.
- Wrong input is one `SettingsError` with all problems. Each is a sentence that names the key as it was written,
  the place, the value and what is allowed. Nothing unknown is passed over.
- Secrets appear in no repr, error or listing.

One module a concern: the section classes (`server`, `auth`, `wal`, `metadata`, `table`, `pipeline`, `maintenance`,
`subscriptions`, `query`, `cloud`)
hold names, defaults, bounds and descriptions; `tree` reads them as data; `yaml_source` and `variables` read the file;
`layers` checks the keys of each source; `load` joins the sources; `show` and `docs` print.
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
from icestream.config.fields import SettingProblem, SettingsError
from icestream.config.load import Loaded, load_settings, load_with_origins
from icestream.config.metadata import MetadataSettings
from icestream.config.pipeline import MaintenanceSettings, PipelineSettings
from icestream.config.settings import Settings
from icestream.config.show import reference, to_tree, to_yaml
from icestream.config.table import (
    CatalogSettings,
    ObjectStoreSettings,
    ReaderSettings,
    StorageSettings,
    TableSettings,
    WriterSettings,
)
from icestream.config.telemetry import TelemetrySettings
from icestream.config.wal import FileSyncSettings, RetentionSettings, RotationSettings, WalSettings

__all__ = [
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
    "load_settings",
    "load_with_origins",
    "reference",
    "to_tree",
    "to_yaml",
]
