//! The part without a server: calls, their results, and the effects that they add.

use super::{ROLLBACK, config, instance};
use crate::effects::{Effect, Effects};
use crate::rollouts::accept::{OpenedUpdate, RequestDecision};
use crate::rollouts::outcome::{RolloutStep, Undo};
use crate::rollouts::{ReadContext, Rollouts};
use crate::sessions::{Requester, Rights};
use crate::subscriptions::ChangedPaths;
use crate::updates::{CheckedUpdate, DesiredChange, UpdateSource, Updates};
use ankaios_model::execution_state::{ExecutionState, Phase, WorkloadState};
use ankaios_model::health_window::{Failure, FailureCause};
use ankaios_model::lifecycle::OnFailure;
use ankaios_model::mask_tree::MaskTree;
use ankaios_model::messages::{AgentCapabilities, FromServer, PreparedInstance};
use ankaios_model::node::Node;
use ankaios_model::prepare_level::PrepareLevel;
use ankaios_model::workload::{ConfigItem, Workload};
use ankaios_platform::clock::{Clock, SystemClock};
use ankaios_wire::peer::PeerId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Workloads and the guarded updates of them.
struct Parts {
    updates: Updates,
    rollouts: Rollouts,
    now: Instant,
}

impl Parts {
    /// The first image of `web` runs on an agent.
    fn new(prepares: bool) -> Self {
        let mut parts = Self {
            updates: Updates::default(),
            rollouts: Rollouts::default(),
            now: SystemClock.now(),
        };
        let mut effects = Effects::default();
        parts.updates.agent_connected(&"A".into());
        let capabilities = AgentCapabilities {
            prepares,
            ..AgentCapabilities::default()
        };
        parts
            .rollouts
            .agent_connected(&"A".into(), capabilities, parts.now, &mut effects);
        let first = parts.checked("1", "");
        parts.commit(first);
        let running = WorkloadState::new(
            instance("web", "1", ""),
            ExecutionState::plain(Phase::Running),
        );
        parts
            .updates
            .states_reported(&"A".into(), vec![running], parts.now, &mut effects);
        parts
    }

    /// A checked request that gives `web` another image.
    fn checked(&self, image: &str, update: &str) -> CheckedUpdate {
        let workload = Arc::new(Workload::new("A", "podman", &config(image, update)));
        let change = DesiredChange {
            workloads: BTreeMap::from([("web".into(), Some(workload))]),
            ..DesiredChange::default()
        };
        self.updates
            .workloads()
            .check(change, UpdateSource::Update)
            .unwrap()
    }

    fn commit(&mut self, checked: CheckedUpdate) {
        let mut effects = Effects::default();
        self.updates
            .commit(checked, ChangedPaths::default(), self.now, &mut effects);
    }

    fn decide(&mut self, checked: CheckedUpdate) -> RequestDecision {
        let requester = Requester {
            is_agent: false,
            source: "cli".into(),
            peer: Some(PeerId(1)),
            workload: None,
        };
        let rights = Rights::default();
        self.rollouts
            .accept(checked, &requester, &rights, &self.updates, self.now)
            .unwrap()
    }

    fn opened(&mut self, image: &str) -> OpenedUpdate {
        let checked = self.checked(image, ROLLBACK);
        match self.decide(checked) {
            RequestDecision::Opened(opened) => *opened,
            _ => panic!("it is not guarded"),
        }
    }
}

#[test]
fn request_without_a_block_is_not_guarded() {
    let mut parts = Parts::new(true);
    let checked = parts.checked("2", "");
    assert!(matches!(parts.decide(checked), RequestDecision::Plain(_)));
}

#[test]
fn update_is_switched_at_once_when_its_agent_cannot_prepare() {
    let mut parts = Parts::new(false);
    let opened = parts.opened("2");
    let switch = parts
        .rollouts
        .switch_or_stage(opened, &parts.updates, parts.now);
    assert!(switch.window.is_some());
    assert!(
        !switch.is_stored_first,
        "its request waits for the disk as all others"
    );
    assert!(switch.commit.revisions.contains_key("web"));
}

#[test]
fn update_is_switched_when_its_agent_has_prepared_it() {
    let mut parts = Parts::new(true);
    let opened = parts.opened("2");
    let number = opened.number();
    let switch = parts
        .rollouts
        .switch_or_stage(opened, &parts.updates, parts.now);
    assert!(switch.window.is_none());
    assert!(switch.commit.revisions.is_empty(), "the old image stays");
    let mut effects = Effects::default();
    parts.rollouts.send_lists(&mut effects);
    let sent: Vec<Effect> = effects.into_iter().collect();
    let [
        Effect::SendToAgent {
            message: FromServer::Prepare(list),
            ..
        },
    ] = &sent[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!(list[0].instance, instance("web", "2", ROLLBACK));
    assert!(parts.rollouts.take_due(parts.now).steps.is_empty());
    let report = PreparedInstance {
        instance: list[0].instance.clone(),
        level: Some(PrepareLevel::Create),
        reason: None,
        tries: 0,
        is_final: false,
        unmet: None,
    };
    parts.rollouts.prepared_reported(&"A".into(), &[report]);
    let due = parts.rollouts.take_due(parts.now);
    assert!(matches!(due.steps[0].step, RolloutStep::Switch));
    let opened = parts.rollouts.take_staged(number).unwrap();
    let switch = parts
        .rollouts
        .switch_or_stage(opened, &parts.updates, parts.now);
    assert!(switch.is_stored_first && switch.window.is_some());
}

#[test]
fn undo_returns_what_was_active_before_the_update() {
    let mut parts = Parts::new(false);
    let opened = parts.opened("2");
    let number = opened.number();
    let switch = parts
        .rollouts
        .switch_or_stage(opened, &parts.updates, parts.now);
    parts.commit(switch.commit);
    let failure = Failure {
        workload: "web".into(),
        cause: FailureCause::State,
        details: "it failed".to_owned(),
        on_failure: OnFailure::Rollback,
    };
    let undo = parts.rollouts.undo(number, &failure, &parts.updates);
    let Undo::RolledBack { commit, .. } = undo else {
        panic!("it is not rolled back")
    };
    parts.commit(commit);
    let effective = &parts.updates.workloads().effective["web"];
    assert_eq!(effective.instance, instance("web", "1", ""));
}

/// The names of the fields of an entry.
fn field_names(entry: Option<&Node>) -> Vec<&str> {
    let Some(Node::Map(fields)) = entry else {
        panic!("{entry:?} is no map");
    };
    fields.keys().collect()
}

// The protocol has no other fields: they would cost memory, and masks could select them.
#[test]
fn update_is_read_without_its_stored_fields() {
    let mut parts = Parts::new(true);
    let workload = Arc::new(Workload::new("A", "podman", &config("2", ROLLBACK)));
    let change = DesiredChange {
        workloads: BTreeMap::from([("web".into(), Some(workload))]),
        configs: BTreeMap::from([("key".to_owned(), Some(ConfigItem::Text("x".to_owned())))]),
        ..DesiredChange::default()
    };
    let workloads = parts.updates.workloads();
    let checked = workloads.check(change, UpdateSource::Update).unwrap();
    let RequestDecision::Opened(opened) = parts.decide(checked) else {
        panic!("it is not guarded");
    };
    let number = opened.number().to_string();
    parts
        .rollouts
        .switch_or_stage(*opened, &parts.updates, parts.now);
    let context = ReadContext {
        api_version: "v1",
        is_stored: true,
        now: parts.now,
    };
    let read = |path: &str| {
        let mask = format!("updates.{number}.{path}");
        let masks = MaskTree::new([mask.as_str()]);
        parts.rollouts.read(&masks.named("updates"), context)
    };
    let web = read("workloads.web");
    let fields = field_names(web.at(&[&number, "workloads", "web"]));
    assert_eq!(fields, ["after", "new", "old"]);
    let key = read("configs.key");
    let fields = field_names(key.at(&[&number, "configs", "key"]));
    assert_eq!(fields, ["after"]);
    for stored in ["source", "workloads.web.before", "workloads.web.inForce"] {
        assert_eq!(read(stored), Node::default(), "{stored}");
    }
}
