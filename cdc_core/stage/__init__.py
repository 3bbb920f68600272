"""Staged batches: Parquet parts and manifests in a directory or a bucket, written once and read by manifest."""
