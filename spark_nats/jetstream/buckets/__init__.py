"""KV buckets."""
