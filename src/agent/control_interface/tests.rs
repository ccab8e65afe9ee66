//! Tests of the hub: interfaces opened, kept and ended while answers come.

use super::*;
use crate::agent::uplink_outbox::{UplinkReader, uplink_outbox};
use crate::limits::CONTROL_MESSAGE_MAX;
use crate::model::access_rules::{AccessRule, Operation};
use crate::model::messages::{LogEntry, RequestContent, ResponseContent, ToServer};
use crate::model::names::InstanceName;
use crate::platform::clock::{Clock, SystemClock};

fn hub() -> (ControlHub, UplinkReader) {
    let (outbox, reader) = uplink_outbox();
    (ControlHub::new(outbox, CONTROL_MESSAGE_MAX).unwrap(), reader)
}

fn access() -> ControlInterfaceAccess {
    let rule = AccessRule::State { operation: Operation::Read, filter_masks: vec!["agents".to_owned()] };
    ControlInterfaceAccess { allow_rules: vec![rule], deny_rules: vec![] }
}

fn lines(id: &str) -> Response {
    let entry = LogEntry { instance: InstanceName::with_id("w", "1", "A"), message: "line".to_owned() };
    Response { id: id.to_owned(), content: ResponseContent::LogEntries(vec![entry]) }
}

fn answer(id: &str) -> Response {
    Response { id: id.to_owned(), content: ResponseContent::LogsCancelAccepted }
}

fn sent(reader: &UplinkReader) -> Vec<Request> {
    std::iter::from_fn(|| reader.next(SystemClock.now()))
        .map(|message| match message {
            ToServer::Request(request) => request,
            other => panic!("a request is expected, not {other:?}"),
        })
        .collect()
}

fn cancel(id: &str) -> Request {
    Request { id: id.to_owned(), content: RequestContent::LogsCancel }
}

#[test]
fn what_a_workload_without_interface_had_asked_for_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let (hub, reader) = hub();
    let interface = hub.open(&"w".into(), folder.path().join("w"), &access()).unwrap();
    interface.end();
    assert!(!folder.path().join("w").exists());
    assert_eq!(hub.deliver_to("w", lines("campaign")), Err(NoInterface));
    assert_eq!(hub.deliver_to("w", answer("campaign")), Err(NoInterface));
    assert_eq!(sent(&reader), [cancel("w@campaign")]);
}

#[test]
fn the_end_of_an_earlier_interface_leaves_the_later_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (hub, _reader) = hub();
    let earlier = hub.open(&"w".into(), folder.path().join("earlier"), &access()).unwrap();
    let later = hub.open(&"w".into(), folder.path().join("later"), &access()).unwrap();
    assert!(earlier.interface.mailbox.lock().ended);
    earlier.end();
    hub.deliver_to("w", answer("x")).unwrap();
    assert!(later.interface.mailbox.lock().outbox.has_any(true));
    assert!(folder.path().join("later/input").exists());
}

#[test]
fn what_an_earlier_interface_of_the_workload_had_asked_for_does_not_reach_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let (hub, reader) = hub();
    let earlier = hub.open(&"w".into(), folder.path().join("w"), &access()).unwrap();
    hub.follow("w", "campaign");
    earlier.end();
    let next = hub.open(&"w".into(), folder.path().join("w"), &access()).unwrap();
    for _ in 0..3 {
        hub.deliver_to("w", lines("campaign")).unwrap();
    }
    assert!(!next.interface.mailbox.lock().outbox.has_any(true));
    assert_eq!(sent(&reader), [cancel("w@campaign")], "it ends at the server, too");
    hub.deliver_to("w", answer("campaign")).unwrap();
    assert!(!next.interface.mailbox.lock().outbox.has_any(true), "the next one has not cancelled anything");
    hub.follow("w", "campaign");
    hub.deliver_to("w", lines("campaign")).unwrap();
    assert!(next.interface.mailbox.lock().outbox.has_any(true));
    hub.connection_lost();
    hub.deliver_to("w", lines("campaign")).unwrap();
    assert_eq!(sent(&reader), [cancel("w@campaign")], "the server cannot go on with it");
}
