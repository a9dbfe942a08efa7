"""Files of data as they lie in stores: found, Hive's directories, footers, checksums, bytes by range."""
