//! Tests of the hub: interfaces opened, kept and ended while answers come.

use super::*;
use crate::uplink_outbox::{UplinkReader, uplink_outbox};
use ankaios_model::access_rules::{AccessRule, Operation};
use ankaios_model::messages::{LogEntry, ReadState, RequestContent, ResponseContent, ToServer};
use ankaios_model::names::InstanceName;
use ankaios_platform::limits::CONTROL_MESSAGE_MAX;

impl ControlHub {
    /// A workload has requested events and logs with this id, and got the first response.
    pub(crate) fn follow(&self, workload: &str, id: &str) {
        self.shared.registry.lock().interfaces[workload]
            .mailbox
            .lock()
            .follow(id);
    }

    /// The id that the agent gives to one of this workload.
    pub(crate) fn full_id(&self, workload: &str, id: &str) -> String {
        self.shared.registry.lock().interfaces[workload]
            .mailbox
            .lock()
            .full_id(id)
    }
}

fn hub() -> (ControlHub, UplinkReader) {
    let (outbox, reader) = uplink_outbox();
    reader.connected();
    (
        ControlHub::new(outbox, CONTROL_MESSAGE_MAX).unwrap(),
        reader,
    )
}

fn access() -> ControlInterfaceAccess {
    let rule = AccessRule::State {
        operation: Operation::Read,
        filter_masks: vec!["agents".to_owned()],
    };
    ControlInterfaceAccess {
        allow_rules: vec![rule],
        deny_rules: vec![],
    }
}

fn lines(id: &str) -> Response {
    let entry = LogEntry::line(InstanceName::with_id("w", "1", "A"), "line");
    Response {
        id: id.to_owned(),
        content: ResponseContent::LogEntries(vec![entry]),
    }
}

fn answer(id: &str) -> Response {
    Response {
        id: id.to_owned(),
        content: ResponseContent::Error("no".into()),
    }
}

fn sent(reader: &UplinkReader) -> Vec<Request> {
    std::iter::from_fn(|| reader.next())
        .map(|message| match message {
            ToServer::Request(request) => request,
            other => panic!("a request is expected, not {other:?}"),
        })
        .collect()
}

fn cancels(id: &str) -> [Request; 2] {
    [RequestContent::LogsCancel, RequestContent::EventsCancel].map(|content| Request {
        id: id.to_owned(),
        content,
    })
}

fn has_any(interface: &ControlInterface) -> bool {
    interface.interface.mailbox.lock().has_any(true)
}

#[test]
fn what_a_workload_without_interface_had_asked_for_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let (hub, reader) = hub();
    let interface = hub
        .open(&"w".into(), folder.path().join("w"), &access(), false)
        .unwrap();
    hub.follow("w", "campaign");
    let id = hub.full_id("w", "campaign");
    interface.end();
    assert!(!folder.path().join("w").exists());
    hub.deliver(lines(&id));
    hub.deliver(answer("no workload"));
    assert_eq!(sent(&reader), cancels(&id));
}

#[test]
fn the_end_of_an_earlier_interface_leaves_the_later_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (hub, _reader) = hub();
    let earlier = hub
        .open(&"w".into(), folder.path().join("earlier"), &access(), false)
        .unwrap();
    let later = hub
        .open(&"w".into(), folder.path().join("later"), &access(), false)
        .unwrap();
    assert!(earlier.interface.ended.load(Ordering::Relaxed));
    earlier.end();
    hub.deliver(answer(&hub.full_id("w", "x")));
    assert!(has_any(&later));
    assert!(folder.path().join("later/input").exists());
}

#[test]
fn requests_of_an_earlier_container_do_not_reach_the_next() {
    for goes_on in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (hub, reader) = hub();
        let mut interface = hub
            .open(&"w".into(), folder.path().join("w"), &access(), false)
            .unwrap();
        hub.follow("w", "campaign");
        let id = hub.full_id("w", "campaign");
        let read = RequestContent::CompleteState(ReadState::default());
        hub.shared.uplink.put_request(
            Request {
                id: hub.full_id("w", "unsent"),
                content: read,
            },
            None,
        );
        if goes_on {
            interface.container_gone();
        } else {
            interface.end();
            interface = hub
                .open(&"w".into(), folder.path().join("w"), &access(), false)
                .unwrap();
        }
        assert_eq!(sent(&reader), cancels(&id), "it ends at the server, too");
        for late in [lines(&id), answer(&id)] {
            hub.deliver(late);
            assert!(!has_any(&interface));
        }
        hub.follow("w", "campaign");
        let id = hub.full_id("w", "campaign");
        hub.deliver(lines(&id));
        assert!(has_any(&interface));
        hub.connection_lost();
        interface.container_gone();
        assert_eq!(sent(&reader), [], "the server has ended it");
    }
}
