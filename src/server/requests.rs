//! Requests of commanders and workloads: each is checked, waits if it has to, and is served; one
//! function for each kind.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::admission::{PendingRequest, RefusedRequest, WithHooks};
use super::effects::Effects;
use super::mutating_hooks::HookOutcome;
use super::rollouts::ReadContext;
use super::sessions::{Denied, RequestKey, Requester};
use super::subscriptions::{SubscriptionKind, USAGE, UsageRead};
use crate::limits::MASKS_PARTS_MAX;
use crate::updates::{AcceptedUpdate, CheckedUpdate, UpdateError, UpdateSource, requested_change};
use ankaios_model::fields::table::PARTS_ON_REQUEST;
use ankaios_model::mask_tree::{MaskTree, Wanted};
use ankaios_model::messages::{
    LogsRequest, ReadState, Request, RequestContent, ResponseContent, StopAndStart,
};
use ankaios_model::names::{Name, excerpt};
use ankaios_model::node::Node;
use ankaios_model::version::SHOWN_VERSION;
use ankaios_platform::logging::log_source;
use ankaios_wire::limits::REQUEST_ID_MAX;
use ankaios_wire::peer::{MessagePermits, PeerId};
use ankaios_wire::semaphore::Permit;
use std::collections::{BTreeSet, HashSet};
use std::time::{Instant, UNIX_EPOCH};

/// Longest `since` or `until` of a log request, in bytes; RFC 3339 needs about 35.
const LOG_TIME_MAX: usize = 64;

/// The response to what was cancelled while it waited.
const WITHDRAWN: &str = "It was cancelled before it began";

/// Why a request may not be kept, passed on or compared with rules, if its size is a reason. All
/// these bounds are far beyond what anybody needs.
fn too_large(id: &str, content: &RequestContent) -> Option<String> {
    if id.len() > REQUEST_ID_MAX {
        return Some(format!(
            "The request id has {} bytes, at most {REQUEST_ID_MAX} are allowed",
            id.len()
        ));
    }
    let texts: Vec<&String> = match content {
        RequestContent::UpdateState(update) => update.masks.iter().chain(&update.restart).collect(),
        RequestContent::StopAndStart(names) => names.stop.iter().chain(&names.start).collect(),
        RequestContent::Logs(logs) => {
            return [("since", &logs.since), ("until", &logs.until)]
                .into_iter()
                .find_map(|(name, time)| {
                    let bytes = time
                        .as_ref()
                        .map(String::len)
                        .filter(|bytes| *bytes > LOG_TIME_MAX)?;
                    Some(format!(
                        "The time '{name}' has {bytes} bytes, at most {LOG_TIME_MAX} are allowed"
                    ))
                });
        }
        _ => return None, // A read with too many masks was not decoded.
    };
    // A mask that is there twice counts once.
    let different: HashSet<&String> = texts.into_iter().collect();
    let parts: usize = different
        .into_iter()
        .map(|mask| mask.split('.').count())
        .sum();
    (parts > MASKS_PARTS_MAX).then(|| {
        format!("The field masks have {parts} parts, at most {MASKS_PARTS_MAX} are allowed; use fewer or shorter masks")
    })
}

impl ServerLoop {
    /// Handles a request and responds on the stream that it came from, or keeps it pending.
    /// `permits` are what its message takes of the inbox.
    pub(super) fn request(
        &mut self,
        peer: PeerId,
        Request { id, content }: Request,
        permits: MessagePermits,
    ) {
        let begin = self.now();
        let key = RequestKey { peer, id };
        let requester = self.sessions.requester(&key);
        if let Some(reason) = too_large(&key.id, &content) {
            self.sessions.refuse_or_drop(&key, reason);
        } else if self.must_wait(&requester, &key, &content, begin) {
            self.enqueue(&requester, key, content, permits);
            self.admission.debit(&requester, begin, self.now());
            return;
        } else {
            self.serve(&requester, &key, content);
        }
        let end = self.now();
        self.admission.debit(&requester, begin, end);
        if requester.is_agent {
            self.admission
                .keep_slot(&requester, permits.into_slot(), end);
        }
    }

    /// Whether a request has to wait. If its response would not be sent soon, the loop is woken
    /// when that has changed.
    fn must_wait(
        &self,
        requester: &Requester,
        key: &RequestKey,
        content: &RequestContent,
        now: Instant,
    ) -> bool {
        let mut capacity = self.sessions.response_capacity(self.admission.waker());
        let has_room = || capacity.has_room(key.peer);
        self.admission
            .must_wait(requester, content, now, self.updates.has_hooks(), has_room)
    }

    /// Keeps a request pending. The slot of a commander is kept with it: its stream is read no
    /// further while many of its requests are pending, so that none is refused. An agent sends
    /// other messages as well, and all its workloads would wait for one of them.
    fn enqueue(
        &mut self,
        requester: &Requester,
        key: RequestKey,
        content: RequestContent,
        permits: MessagePermits,
    ) {
        let slot = if requester.is_agent {
            let now = self.now();
            self.admission
                .keep_slot(requester, permits.into_slot(), now);
            Permit::default()
        } else {
            permits.into_slot()
        };
        let request = PendingRequest::new(requester.clone(), key, content, slot);
        let refused = self.admission.enqueue(request);
        for RefusedRequest { request, reason } in refused {
            self.refuse_pending(request, &reason);
        }
    }

    fn refuse_pending(&mut self, request: PendingRequest, reason: &str) {
        let PendingRequest {
            requester,
            key,
            content,
            ..
        } = request;
        match content {
            // What frees something is never refused. The responses before it come later, which
            // matters little.
            RequestContent::LogsCancel | RequestContent::EventsCancel => {
                for _ in 0..self.admission.withdraw(&key) {
                    self.sessions.refuse_or_drop(&key, WITHDRAWN);
                }
                self.serve(&requester, &key, content);
            }
            _ => {
                self.sessions.refuse_or_drop(&key, reason);
                self.older_update_done(&key);
            }
        }
    }

    /// Serves the next pending request that may be served, and wakes the loop for others: each may
    /// take its time, and other events are handled in between. Returns whether there was one.
    pub(super) fn serve_pending(&mut self) -> bool {
        let begin = self.now();
        let waker = self.admission.waker().clone();
        let mut capacity = self.sessions.response_capacity(&waker);
        let next = self.admission.next(begin, |peer| capacity.has_room(peer));
        let Some(PendingRequest {
            requester,
            key,
            content,
            ..
        }) = next
        else {
            return false;
        };
        let _source = log_source(requester.source.clone());
        self.serve(&requester, &key, content);
        self.admission.debit(&requester, begin, self.now());
        waker.wake_by_ref();
        true
    }

    /// Our agents deny by themselves what this denies.
    fn deny(&mut self, key: &RequestKey, denied: Denied) {
        if let Some(peer) = self.sessions.peer(key.peer) {
            log::warn!(
                "Denied request '{}' of agent '{}': {denied}",
                excerpt(&key.id),
                peer.name
            );
        }
        self.sessions.refuse_or_drop(key, denied);
    }

    /// Serves a request as far as it is allowed at this time.
    fn serve(&mut self, requester: &Requester, key: &RequestKey, content: RequestContent) {
        if let Err(denied) = self.sessions.rights().authorize(requester, &content) {
            self.deny(key, denied);
            return self.older_update_done(key);
        }
        match content {
            RequestContent::UpdateState(_) | RequestContent::RollBack(_) => {
                self.change_state(requester, key, content)
            }
            RequestContent::StopAndStart(names) => self.stop_and_start(requester, key, &names),
            RequestContent::CompleteState(read) if !read.subscribe => {
                self.complete_state(requester, key, &read)
            }
            RequestContent::Missing => self
                .sessions
                .refuse(key, "The Request does not contain any content"),
            // What lasts longer than its response must be found again by its id.
            _ if key.id.is_empty() => self.sessions.refuse(key, "The request id is empty"),
            _ if requester.agent().is_some() && requester.workload.is_none() => {
                let id = &key.id;
                self.sessions.refuse(
                    key,
                    format_args!(
                        "The request id '{id}' does not begin with the name of a workload"
                    ),
                );
            }
            RequestContent::CompleteState(read) => self.complete_state(requester, key, &read),
            RequestContent::EventsCancel => {
                self.subscriptions.remove(SubscriptionKind::Events, key);
                self.sessions
                    .respond(key, ResponseContent::EventsCancelAccepted);
            }
            RequestContent::Logs(logs) => self.logs(requester, key, logs),
            RequestContent::LogsCancel => {
                let mut effects = Effects::default();
                self.subscriptions.cancel_logs(key, &mut effects);
                self.apply(effects);
            }
        }
    }

    /// Requests the logs of workloads; what is not in the effective state is left out.
    fn logs(&mut self, requester: &Requester, key: &RequestKey, mut request: LogsRequest) {
        let workloads = self.updates.workloads();
        request.instances.retain(|name| workloads.is_wanted(name));
        if request.instances.len() > 2 * workloads.effective.len() {
            return self.sessions.refuse(
                key,
                "The request for logs names the same workloads again and again; name each once",
            );
        }
        let owner = self.sessions.rights().owner(requester);
        let availability = |agent: &Name| self.sessions.log_availability(agent);
        let mut effects = Effects::default();
        self.subscriptions
            .collect_logs(key, requester, owner, request, availability, &mut effects);
        self.apply(effects);
    }

    /// Reads the state. With a subscription the response comes first, so that events begin where it
    /// ends.
    fn complete_state(&mut self, requester: &Requester, key: &RequestKey, read: &ReadState) {
        let masks = match MaskTree::of_request(&read.masks) {
            Ok(masks) => masks,
            Err(error) => return self.sessions.refuse(key, error),
        };
        if read.subscribe {
            let owner = self.sessions.rights().owner(requester);
            let result = self
                .subscriptions
                .subscribe(key, requester, owner, masks.clone());
            if let Err(error) = result {
                return self.sessions.refuse(key, error);
            }
            self.updates.observe(true);
        }
        let Some(masks) = masks else {
            let state = self.view().everything();
            return self.respond_with_state(key, state);
        };
        if read.subscribe {
            let state = self.view().select(&masks);
            return self.respond_with_state(key, state);
        }
        if !masks.named(USAGE).is_nothing() {
            return self.read_usage(requester, key, read, &masks); // The response follows.
        }
        let mut state = self.view().select(&masks);
        self.add_parts_on_request(requester, &masks, &mut state);
        self.respond_with_state(key, state);
    }

    fn respond_with_state(&mut self, key: &RequestKey, state: Node) {
        let altered = None;
        self.sessions
            .respond(key, ResponseContent::CompleteState { state, altered });
    }

    // ------------------------------------------------------------------ usage

    /// Begins a read of the usage of workloads, which waits for the agents.
    fn read_usage(
        &mut self,
        requester: &Requester,
        key: &RequestKey,
        read: &ReadState,
        masks: &MaskTree,
    ) {
        let content = RequestContent::CompleteState(read.clone());
        let usage_read = UsageRead::new(masks.clone(), content, self.now());
        let agents = self.sessions.agents();
        let mut effects = Effects::default();
        self.subscriptions
            .read_usage(key, requester, usage_read, agents, &mut effects);
        self.apply(effects);
    }

    /// Responds to the reads that need not wait any more, the oldest first, each as soon as its
    /// response would be sent.
    pub(super) fn respond_with_usage(&mut self) {
        while !self.subscriptions.has_no(SubscriptionKind::Usage(0)) {
            let begin = self.now();
            let ready = self.subscriptions.end_waits(begin);
            let mut capacity = self.sessions.response_capacity(self.admission.waker());
            let next = ready
                .into_iter()
                .find(|(_, key)| capacity.has_room(key.peer));
            let Some((kind, key)) = next else {
                return;
            };
            let Some((requester, read)) = self.subscriptions.take_read(kind, &key) else {
                return;
            };
            self.respond_to_usage_read(&requester, &key, &read);
            self.admission.debit(&requester, begin, self.now());
        }
    }

    fn respond_to_usage_read(&mut self, requester: &Requester, key: &RequestKey, read: &UsageRead) {
        // What was allowed when the request came may not be so any more.
        let rights = self.sessions.rights();
        if let Err(denied) = rights.authorize(requester, &read.content) {
            return self.deny(key, denied);
        }
        let mut state = self.view().select(&read.masks);
        self.add_parts_on_request(requester, &read.masks, &mut state);
        if let Node::Map(parts) = &mut state {
            parts.insert(USAGE.to_owned(), read.selected());
        }
        self.respond_with_state(key, state);
    }

    // ---------------------------------------------------------------- updates

    /// What an update means for the present state.
    fn check_update(
        &self,
        requester: &Requester,
        content: RequestContent,
    ) -> Result<CheckedUpdate, UpdateError> {
        let source = if requester.agent().is_some() {
            UpdateSource::UpdateOfWorkload
        } else {
            UpdateSource::Update
        };
        let update = match content {
            RequestContent::RollBack(number) => {
                let back = self.rollouts.way_back(
                    number,
                    requester,
                    self.sessions.rights(),
                    &self.updates,
                )?;
                return Ok(CheckedUpdate {
                    restarted: back.restarted,
                    ..self.updates.workloads().check(back.change, source)?
                });
            }
            RequestContent::UpdateState(update) => update,
            _ => return Err(UpdateError::NoState),
        };
        let workloads = self.updates.workloads();
        let (restart, has_state) = (update.restart.clone(), update.new_state.is_some());
        let writes_mode = workloads
            .modes
            .as_ref()
            .is_some_and(|modes| modes.is_written_by(&update.masks));
        let failed = self.updates.failed_at_start(&update.masks);
        let mut change = requested_change(self.view(), update, requester.agent().is_none())?;
        for (name, workload) in failed {
            change.workloads.entry(name).or_insert(Some(workload));
        }
        let checked = workloads.check(change, source)?;
        let revisions = has_state.then_some(&checked.revisions);
        let restarted = self.updates.to_restart(&restart, revisions)?;
        self.check_restart(&restarted, requester)?;
        Ok(CheckedUpdate {
            writes_mode: writes_mode && has_state,
            restarted,
            ..checked
        })
    }

    /// Checks that a requester may restart these workloads now.
    ///
    /// # Errors
    /// Why not one of them.
    fn check_restart(
        &self,
        restarted: &BTreeSet<Name>,
        requester: &Requester,
    ) -> Result<(), UpdateError> {
        for name in restarted {
            let mask = format!("desiredState.workloads.{name}");
            if !self.sessions.rights().may_write(requester, vec![mask]) {
                return Err(UpdateError::Other(format!(
                    "it would restart '{name}', too, which this workload may not write"
                )));
            }
            self.updates.check_agent_of(name)?;
            if let Some(number) = self.rollouts.open_update_of(name) {
                return Err(UpdateError::Other(format!(
                    "'{name}' is a part of update {number}, which is open; wait until that has ended, or roll it back"
                )));
            }
        }
        Ok(())
    }

    /// Checks an update, has the hooks look at it, and carries it out.
    fn change_state(&mut self, requester: &Requester, key: &RequestKey, content: RequestContent) {
        let _source = log_source(requester.log_source());
        let kept = self.updates.has_hooks().then(|| content.clone());
        let checked = match self.check_update(requester, content) {
            Ok(checked) => checked,
            Err(error) => return self.update_done(key, Err(error)),
        };
        if let Some(content) = kept
            && self.updates.start_hooks(&checked)
        {
            return self.admission.begin(WithHooks {
                requester: requester.clone(),
                key: key.clone(),
                content,
                checked,
                commits: self.updates.workloads().commits,
            });
        }
        let result = self.accept(checked, requester);
        self.update_done(key, result);
    }

    /// Stops and starts workloads. Hooks are not asked: they see all workloads with their own agents.
    fn stop_and_start(&mut self, requester: &Requester, key: &RequestKey, request: &StopAndStart) {
        let _source = log_source(requester.log_source());
        let result = match self.updates.stopped_after(request, &self.rollouts) {
            Ok(stopped) => {
                let (now, mut effects) = (self.now(), Effects::default());
                let accepted = self.updates.set_stopped(stopped, now, &mut effects);
                self.apply(effects);
                Ok(accepted)
            }
            Err(error) => Err(error),
        };
        self.update_done(key, result);
    }

    /// What users should know of the stored state and of stopped workloads; `None` while all is well.
    fn warning(&self) -> Option<String> {
        let stopped = self.updates.stop_warning(self.storage.is_on());
        match (self.storage.warning(), stopped) {
            (Some(storage), Some(stopped)) => Some(format!("{storage}; also, {stopped}")),
            (storage, stopped) => storage.or(stopped),
        }
    }

    /// The hooks are done: carries the update out or refuses it. If the state is another one than
    /// they were asked about, it begins anew: what it means now may be something else.
    pub(super) fn hooks_done(&mut self, outcome: HookOutcome) {
        let begin = self.now();
        let Some(WithHooks {
            requester,
            key,
            content,
            checked,
            commits,
        }) = self.admission.end()
        else {
            log::error!("Ignoring an outcome of mutating hooks without an update.");
            return;
        };
        let _source = log_source(requester.log_source());
        if outcome.is_ok() && commits != self.updates.workloads().commits {
            self.serve(&requester, &key, content);
        } else {
            let hooked = self.updates.workloads().hooked(checked, outcome);
            let result = hooked.and_then(|checked| self.accept(checked, &requester));
            self.update_done(&key, result);
        }
        self.admission.debit(&requester, begin, self.now());
        self.admission.waker().wake_by_ref(); // For what waited for that.
    }

    fn update_done(&mut self, key: &RequestKey, result: Result<AcceptedUpdate, UpdateError>) {
        self.updates.count(result.is_ok());
        match result {
            Ok(accepted) => {
                let response = accepted.response(self.warning());
                self.sessions.respond(key, response);
            }
            Err(error) => {
                let error = error.response();
                log::warn!("Refusing an update: {}", excerpt(&error.text));
                self.sessions.respond(key, ResponseContent::Error(error));
            }
        }
        self.older_update_done(key);
    }

    /// The versions and certificates of the server and of connected agents.
    // [impl->swdd~server-reports-programs~1]
    fn programs(&self) -> Node {
        let mut agents = Vec::new();
        for (name, agent) in self.sessions.agents() {
            let since_1970 = agent.connected_at.duration_since(UNIX_EPOCH);
            let connected_at = since_1970.unwrap_or_default().as_secs();
            let mut fields = vec![
                ("version", Node::text(agent.version.as_str())),
                ("connectedAt", Node::Number(connected_at)),
            ];
            if let Some(expires) = agent.certificate_expires {
                fields.push(("certificateExpires", Node::Number(expires)));
            }
            agents.push((name.to_string(), Node::map(fields)));
        }
        let mut programs = vec![
            ("version", Node::text(SHOWN_VERSION.as_str())),
            ("agents", Node::map(agents)),
        ];
        if let Some(expires) = self.expiry.own {
            programs.push(("certificateExpires", Node::Number(expires)));
        }
        Node::map(programs)
    }

    fn read_updates(&self, wanted: &Wanted<'_>) -> Node {
        let context = ReadContext {
            api_version: &self.updates.workloads().desired.api_version,
            is_stored: self.storage.is_on(),
            now: self.now(),
        };
        self.rollouts.read(wanted, context)
    }

    fn older_update_done(&mut self, key: &RequestKey) {
        let (now, mut effects) = (self.now(), Effects::default());
        self.updates.older_update_done(key, now, &mut effects);
        self.apply(effects);
    }
}

// ---------------------------------------------------------- parts on request

impl ServerLoop {
    /// Adds to `state`, the response to a read with `masks`, the parts that these request by name.
    /// Such a part exists only where a mask of a read begins with its name: not in a read without
    /// masks, not for `*`, not in subscriptions and events, and updates do not know it. So clients
    /// of other implementations never receive fields that they did not request, and parts that cost
    /// something cost nothing unread.
    ///
    /// What workloads use is such a part, too; its reads wait for the agents.
    // [impl->swdd~server-sends-parts-on-request~1]
    fn add_parts_on_request(&self, requester: &Requester, masks: &MaskTree, state: &mut Node) {
        let Node::Map(entries) = state else { return };
        for name in PARTS_ON_REQUEST {
            let wanted = masks.named(name);
            // What was before updates would pass the deny rules of workloads, and the others are
            // not for them either.
            if wanted.is_nothing() || *name != "modes" && requester.agent().is_some() {
                continue;
            }
            let part = match *name {
                "modes" => self.updates.workloads().modes_node(&wanted),
                "timings" => self.updates.timings().read(self.now(), &wanted),
                "history" => wanted.take(self.updates.history().node()),
                "programs" => wanted.take(self.programs()),
                "updates" => Some(self.read_updates(&wanted)),
                "warning" => self
                    .warning()
                    .and_then(|warning| wanted.take(Node::text(warning))),
                _ => None,
            };
            entries.extend(part.map(|part| ((*name).into(), part)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_store::StateStore;
    use crate::tests::{Cluster, read, update};

    const MANIFEST: &str = "
apiVersion: v1
workloads:
  reader:
    agent: A
    runtime: podman
    runtimeConfig: x
    controlInterfaceAccess:
      allowRules: [{type: StateRule, operation: Read, filterMasks: ['*', timings]}]
";

    // [utest->swdd~server-sends-parts-on-request~1]
    #[test]
    fn a_part_exists_only_where_a_mask_of_a_read_begins_with_its_name() {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let client = cluster.commander();
        let usual = ["agents", "desiredState", "effectiveState", "workloadStates"];
        // No agent is connected.
        let without = ["desiredState", "effectiveState", "workloadStates"];
        for (masks, subscribe, expected) in [
            (&[][..], false, &usual[..]),
            (&["*"], false, &usual),
            (&["*.now", "*.*.*"], false, &without),
            (&["tim", "timing.now", "timingss"], false, &[]),
            (&["timings"], false, &["timings"]),
            (&["timings.now", "agents"], false, &["agents", "timings"]),
            (&["timings.nothing"], false, &[]),
            (&["timings"], true, &[]),
            (&["history"], false, &["history"]),
            (&["history"], true, &[]),
            (&["programs"], false, &["programs"]),
            (&["programs"], true, &[]),
            (&[], true, &usual),
        ] {
            let response = cluster.request(client, read(masks, subscribe));
            let ResponseContent::CompleteState {
                state: Node::Map(parts),
                ..
            } = response
            else {
                panic!("no state")
            };
            assert_eq!(parts.keys().collect::<Vec<_>>(), expected, "{masks:?}");
        }
    }

    #[test]
    fn a_warning_of_the_start_is_read_by_its_name_only() {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.read(&["warning"]), "{}");
        cluster.server.set_warning("an older state".to_owned());
        assert_eq!(
            cluster.read(&["warning"]),
            r#"{"warning":"an older state"}"#
        );
        assert!(
            !cluster.read(&["*"]).contains("warning") && !cluster.read(&[]).contains("warning")
        );
    }

    // [utest->swdd~server-warns-of-unstored-state~1]
    #[test]
    fn updates_say_that_an_older_state_is_used_until_one_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::default();
        let client = cluster.commander();
        cluster.server.set_warning("an older state".to_owned());
        let (store, _thread) = StateStore::start(folder.path().to_owned(), None).unwrap();
        cluster.server.set_store(store);
        let warning_of = |cluster: &mut Cluster, key: &str| {
            let state = format!("{{desiredState: {{apiVersion: v1, configs: {{{key}: x}}}}}}");
            let response = cluster.request(
                client,
                update(&state, &[&format!("desiredState.configs.{key}")]),
            );
            let ResponseContent::UpdateStateSuccess { warning, .. } = response else {
                panic!("{response:?}")
            };
            warning
        };
        assert_eq!(
            warning_of(&mut cluster, "a"),
            Some("an older state".to_owned()),
            "it is not stored yet"
        );
        // The writer's report arrives with some later event.
        while cluster.read(&["warning"]) != "{}" {
            std::thread::yield_now();
        }
        assert_eq!(warning_of(&mut cluster, "b"), None);
    }

    #[test]
    fn a_wildcard_beside_the_name_selects_nothing_more_of_the_part() {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.read(&["timings.boot.x", "*.now"]), "{}");
        assert!(
            cluster
                .read(&["timings.now", "*.boot"])
                .starts_with(r#"{"timings":{"now":"#)
        );
        assert!(
            !cluster
                .read(&["timings.now", "*.boot", "*"])
                .contains("boot")
        );
    }

    #[test]
    fn workloads_do_not_get_a_part_that_is_not_for_them() {
        let mut cluster = Cluster::with_manifest(MANIFEST);
        let agent = cluster.settled_agent("A");
        cluster.send_request(agent, "reader@1", read(&["timings", "agents"], false));
        let [ResponseContent::CompleteState { state, .. }] = &cluster.responses(agent)[..] else {
            panic!("no state")
        };
        assert!(
            state.get("agents").is_some() && state.get("timings").is_none(),
            "{state:?}"
        );
    }
}
