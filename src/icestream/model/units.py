"""Sizes in bytes. A name that ends in `_mb` counts MiB."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
