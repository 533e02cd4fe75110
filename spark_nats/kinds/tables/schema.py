"""The columns of the tables of the account's inventory."""

from spark_nats.kinds.tables.options import BUCKETS, CONSUMERS, STREAMS, SUBJECTS

TABLE_SCHEMAS = {
    STREAMS: (
        "name STRING, created TIMESTAMP_LTZ, description STRING, subjects ARRAY<STRING>, retention STRING, "
        "storage STRING, replicas INT, compression STRING, discard STRING, max_msgs BIGINT, "
        "max_msgs_per_subject BIGINT, max_bytes BIGINT, max_msg_size BIGINT, max_consumers BIGINT, max_age DOUBLE, "
        "duplicate_window DOUBLE, "
        "allow_direct BOOLEAN, sealed BOOLEAN, mirror STRING, sources ARRAY<STRING>, metadata MAP<STRING, STRING>, "
        "messages BIGINT, bytes BIGINT, first_sequence BIGINT, last_sequence BIGINT, first_time TIMESTAMP_LTZ, "
        "last_time TIMESTAMP_LTZ, deleted BIGINT, subject_count BIGINT, consumer_count BIGINT, cluster STRING, "
        "leader STRING, problem STRING"
    ),
    CONSUMERS: (
        "stream STRING, name STRING, created TIMESTAMP_LTZ, description STRING, durable BOOLEAN, "
        "filter_subjects ARRAY<STRING>, deliver_policy STRING, deliver_subject STRING, ack_policy STRING, "
        "ack_wait DOUBLE, max_deliver BIGINT, max_ack_pending BIGINT, max_waiting BIGINT, inactive_threshold DOUBLE, "
        "replicas INT, metadata MAP<STRING, STRING>, delivered_sequence BIGINT, delivered_time TIMESTAMP_LTZ, "
        "ack_floor_sequence BIGINT, ack_floor_time TIMESTAMP_LTZ, pending BIGINT, ack_pending BIGINT, "
        "redelivered BIGINT, waiting BIGINT, paused BOOLEAN, paused_until TIMESTAMP_LTZ, cluster STRING, "
        "leader STRING, problem STRING"
    ),
    BUCKETS: (
        "bucket STRING, created TIMESTAMP_LTZ, description STRING, history BIGINT, max_age DOUBLE, max_bytes BIGINT, "
        "max_value_size BIGINT, limit_marker_ttl DOUBLE, storage STRING, replicas INT, compression BOOLEAN, "
        "mirror STRING, metadata MAP<STRING, STRING>, keys BIGINT, entries BIGINT, bytes BIGINT, revision BIGINT, "
        "last_time TIMESTAMP_LTZ, cluster STRING, leader STRING, problem STRING"
    ),
    SUBJECTS: "stream STRING, subject STRING, messages BIGINT, problem STRING",
}
"""All columns of the tables of the account's inventory, by the tables' names, as DDL."""
