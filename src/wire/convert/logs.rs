//! Log requests and log lines, which travel in both directions.
//!
//! Thread: whichever reads or writes the stream.

use super::workload::{instance_name, read_instance_name};
use crate::model::messages::{LogEntry, LogsRequest};
use crate::wire::schema::ank_base as base;
use protobuf::MessageField;

pub(super) fn logs_request(request: LogsRequest) -> base::LogsRequest {
    base::LogsRequest {
        workloadNames: request.instances.iter().map(instance_name).collect(),
        follow: request.follow,
        tail: request.tail,
        since: request.since,
        until: request.until,
        ..Default::default()
    }
}

pub(super) fn read_logs_request(request: base::LogsRequest) -> LogsRequest {
    LogsRequest {
        instances: request.workloadNames.iter().map(read_instance_name).collect(),
        follow: request.follow,
        tail: request.tail,
        since: request.since,
        until: request.until,
    }
}

pub(super) fn log_entries(entries: Vec<LogEntry>) -> base::LogEntriesResponse {
    let entry = |entry: LogEntry| base::LogEntry {
        workloadName: MessageField::some(instance_name(&entry.instance)),
        message: entry.message,
        ..Default::default()
    };
    base::LogEntriesResponse { logEntries: entries.into_iter().map(entry).collect(), ..Default::default() }
}

pub(super) fn read_log_entries(entries: base::LogEntriesResponse) -> Vec<LogEntry> {
    let entry =
        |entry: base::LogEntry| LogEntry { instance: read_instance_name(&entry.workloadName), message: entry.message };
    entries.logEntries.into_iter().map(entry).collect()
}
