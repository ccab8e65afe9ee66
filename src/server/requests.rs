//! Requests of commanders and workloads: each is checked, stays pending if it has to, and is
//! served, by one function for each kind.
//!
//! Thread: `server`; part of [`ServerLoop`].

use super::ServerLoop;
use super::admission::{PendingRequest, RefusedRequest, WithHooks};
use super::effects::Effects;
use super::mutating_hooks::HookOutcome;
use super::rollouts::ReadContext;
use super::sessions::{RequestKey, Requester};
use super::subscriptions::{SubscriptionKind, USAGE, UsageRead};
use crate::limits::MASKS_PARTS_MAX;
use crate::updates::{AcceptedUpdate, CheckedUpdate, UpdateError, UpdateSource, requested_change};
use ankaios_model::fields::table::PARTS_ON_REQUEST;
use ankaios_model::mask_tree::{MaskTree, Wanted};
use ankaios_model::messages::{
    LogsRequest, ReadState, Request, RequestContent, ResponseContent, StopAndStart, UpdateState,
};
use ankaios_model::names::{Name, excerpt};
use ankaios_model::node::Node;
use ankaios_model::version::{SHOWN_VERSION, shown_of_peer};
use ankaios_platform::logging::log_source;
use ankaios_wire::limits::REQUEST_ID_MAX;
use ankaios_wire::peer::{MessagePermits, PeerId};
use ankaios_wire::semaphore::Permit;
use std::collections::{BTreeSet, HashSet};
use std::time::{Instant, UNIX_EPOCH};

/// Longest `since` or `until` of a log request, in bytes; RFC 3339 needs about 35.
const LOG_TIME_MAX: usize = 64;

/// The response to a pending request that was cancelled.
const WITHDRAWN: &str = "It was cancelled before it began";

/// Checks the size of a request before it is kept, passed on or compared with rules.
///
/// # Errors
/// The text for its sender.
fn check_size(id: &str, content: &RequestContent) -> Result<(), String> {
    if id.len() > REQUEST_ID_MAX {
        return Err(format!(
            "The request id has {} bytes, at most {REQUEST_ID_MAX} are allowed",
            id.len()
        ));
    }
    match content {
        RequestContent::UpdateState(update) => {
            check_parts(update.masks.iter().chain(&update.restart))
        }
        RequestContent::StopAndStart(names) => check_parts(names.stop.iter().chain(&names.start)),
        RequestContent::Logs(logs) => {
            check_log_time("since", logs.since.as_ref())?;
            check_log_time("until", logs.until.as_ref())
        }
        _ => Ok(()), // A read with too many masks was not decoded.
    }
}

fn check_log_time(name: &str, time: Option<&String>) -> Result<(), String> {
    let bytes = time.map_or(0, String::len);
    if bytes <= LOG_TIME_MAX {
        return Ok(());
    }
    Err(format!(
        "The time '{name}' has {bytes} bytes, at most {LOG_TIME_MAX} are allowed"
    ))
}

/// Checks the parts of these masks and names. Equal ones count once.
fn check_parts<'m>(masks: impl Iterator<Item = &'m String>) -> Result<(), String> {
    let mut different = HashSet::new();
    let mut parts = 0;
    for mask in masks {
        let is_new = different.insert(mask);
        if is_new {
            parts += mask.split('.').count();
        }
    }
    if parts <= MASKS_PARTS_MAX {
        return Ok(());
    }
    Err(format!(
        "The field masks have {parts} parts, at most {MASKS_PARTS_MAX} are allowed; use fewer or shorter masks"
    ))
}

impl ServerLoop {
    /// Serves a request, keeps it pending, or refuses it. Its message in the inbox holds `permits`.
    pub(super) fn request(
        &mut self,
        peer: PeerId,
        Request { id, content }: Request,
        permits: MessagePermits,
    ) {
        let begin = self.now();
        let key = RequestKey { peer, id };
        let requester = self.sessions.requester(&key);
        let size = check_size(&key.id, &content);
        if size.is_ok() && self.must_wait(&requester, &key, &content, begin) {
            self.enqueue(&requester, key, content, permits);
            self.admission.debit(&requester, begin, self.now());
            return;
        }
        match size {
            Ok(()) => self.serve(&requester, &key, content),
            Err(reason) => self.sessions.refuse_or_drop(&key, reason),
        }
        let end = self.now();
        self.admission.debit(&requester, begin, end);
        if requester.is_agent {
            self.admission
                .keep_slot(&requester, permits.into_slot(), end);
        }
    }

    /// Returns whether a request has to stay pending. If there is no room for its response, the
    /// loop is woken once there is.
    fn must_wait(
        &self,
        requester: &Requester,
        key: &RequestKey,
        content: &RequestContent,
        now: Instant,
    ) -> bool {
        let has_hooks = self.updates.has_hooks();
        let mut capacity = self.sessions.response_capacity(self.admission.waker());
        self.admission
            .must_wait(requester, content, now, has_hooks, || {
                capacity.poll_room(key.peer)
            })
    }

    /// Keeps a request pending, and refuses requests, perhaps this one, if the capacity is used up.
    fn enqueue(
        &mut self,
        requester: &Requester,
        key: RequestKey,
        content: RequestContent,
        permits: MessagePermits,
    ) {
        let slot = if requester.is_agent {
            // The stream of an agent is read further: it has messages of other kinds, and requests
            // of other workloads.
            let now = self.now();
            self.admission
                .keep_slot(requester, permits.into_slot(), now);
            Permit::default()
        } else {
            // The request of a commander keeps its slot. So its stream is read no further while it
            // has many pending requests, and none of them is refused.
            permits.into_slot()
        };
        let request = PendingRequest::new(requester.clone(), key, content, slot);
        let refused = self.admission.enqueue(request);
        for RefusedRequest { request, reason } in refused {
            self.refuse_pending(request, &reason);
        }
    }

    /// Refuses a request that there is no capacity for. A cancellation is served instead.
    fn refuse_pending(&mut self, request: PendingRequest, reason: &str) {
        let PendingRequest {
            requester,
            key,
            content,
            ..
        } = request;
        match content {
            // A cancellation frees capacity, so it may overtake earlier requests of its requester.
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

    /// Serves one pending request, if one can be served now. Returns whether there was one.
    pub(super) fn serve_pending(&mut self) -> bool {
        let begin = self.now();
        let waker = self.admission.waker().clone();
        let mut capacity = self.sessions.response_capacity(&waker);
        let next = self.admission.next(begin, |peer| capacity.poll_room(peer));
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
        waker.wake_by_ref(); // For the next request, after events that have come meanwhile.
        true
    }

    /// Serves a request, if its requester has the right at this time.
    fn serve(&mut self, requester: &Requester, key: &RequestKey, content: RequestContent) {
        if let Err(denied) = self.sessions.rights().authorize(requester, &content) {
            self.sessions.deny(key, denied);
            return self.older_update_done(key);
        }
        if is_of_subscription(&content)
            && let Err(reason) = check_subscription_id(requester, key)
        {
            return self.sessions.refuse(key, reason);
        }
        match content {
            RequestContent::UpdateState(_) | RequestContent::RollBack(_) => {
                self.change_state(requester, key, content)
            }
            RequestContent::StopAndStart(names) => self.stop_and_start(requester, key, &names),
            RequestContent::CompleteState(read) => self.complete_state(requester, key, &read),
            RequestContent::Missing => self
                .sessions
                .refuse(key, "The Request does not contain any content"),
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

    /// Requests the logs of workloads. Instances that are not effective are left out.
    fn logs(&mut self, requester: &Requester, key: &RequestKey, mut request: LogsRequest) {
        let workloads = self.updates.workloads();
        request.instances.retain(|name| workloads.is_wanted(name));
        // Each effective workload has one wanted instance, so further names are repetitions. Some
        // of these are tolerated.
        if request.instances.len() > 2 * workloads.effective.len() {
            return self.sessions.refuse(
                key,
                "The request for logs names workloads several times; name each once",
            );
        }
        let owner = self.sessions.rights().owner(requester);
        let mut effects = Effects::default();
        self.subscriptions.collect_logs(
            key,
            requester,
            owner,
            request,
            |agent| self.sessions.log_availability(agent),
            &mut effects,
        );
        self.apply(effects);
    }

    /// Reads the state. With `subscribe`, later changes follow the response as events.
    fn complete_state(&mut self, requester: &Requester, key: &RequestKey, read: &ReadState) {
        let masks = match MaskTree::of_request(&read.masks) {
            Ok(masks) => masks,
            Err(error) => return self.sessions.refuse(key, error),
        };
        // First, the subscription, which may be refused.
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
        // Then, the response. A read without masks is for the whole state.
        let Some(masks) = masks else {
            let state = self.view().everything();
            return self.sessions.respond_with_state(key, state);
        };
        // Events never have the parts on request, so this response has none either.
        if read.subscribe {
            let state = self.view().select(&masks);
            return self.sessions.respond_with_state(key, state);
        }
        // With the part `usage`, the response has to wait for agents.
        let has_usage = !masks.named(USAGE).is_nothing();
        if has_usage {
            return self.read_usage(requester, key, read, &masks);
        }
        let mut state = self.view().select(&masks);
        self.add_parts_on_request(requester, &masks, &mut state);
        self.sessions.respond_with_state(key, state);
    }

    // ------------------------------------------------------------------ usage

    /// Begins a read of the usage of workloads. Its response waits for the samples of agents.
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

    /// Responds to the usage reads that wait for no sample any more, the oldest first. A read whose
    /// response would not be sent soon stays, and the loop is woken once there is room for it.
    pub(super) fn respond_with_usage(&mut self) {
        while self.subscriptions.has_usage_reads() {
            let begin = self.now();
            let mut capacity = self.sessions.response_capacity(self.admission.waker());
            let mut next = None;
            for (kind, key) in self.subscriptions.end_waits(begin) {
                if capacity.poll_room(key.peer) {
                    next = Some((kind, key));
                    break;
                }
            }
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

    /// Responds with the samples of a read, and with the other parts that it requests.
    fn respond_to_usage_read(&mut self, requester: &Requester, key: &RequestKey, read: &UsageRead) {
        // Its rights may have changed while it waited.
        let rights = self.sessions.rights();
        if let Err(denied) = rights.authorize(requester, &read.content) {
            return self.sessions.deny(key, denied);
        }
        let mut state = self.view().select(&read.masks);
        self.add_parts_on_request(requester, &read.masks, &mut state);
        if let Node::Map(parts) = &mut state {
            parts.insert(USAGE.to_owned(), read.selected());
        }
        self.sessions.respond_with_state(key, state);
    }

    // ---------------------------------------------------------------- updates

    /// Checks an update against the present state.
    fn check_update(
        &self,
        requester: &Requester,
        content: RequestContent,
    ) -> Result<CheckedUpdate, UpdateError> {
        match content {
            RequestContent::RollBack(number) => self.check_rollback(requester, number),
            RequestContent::UpdateState(update) => self.check_new_state(requester, update),
            _ => Err(UpdateError::NoState), // No other content is an update.
        }
    }

    /// Checks the request for a rollback of update `number`.
    fn check_rollback(
        &self,
        requester: &Requester,
        number: u64,
    ) -> Result<CheckedUpdate, UpdateError> {
        let rights = self.sessions.rights();
        let back = self
            .rollouts
            .way_back(number, requester, rights, &self.updates)?;
        let source = source_of(requester);
        Ok(CheckedUpdate {
            restarted: back.restarted,
            ..self.updates.workloads().check(back.change, source)?
        })
    }

    /// Checks the request for a new state, or for restarts.
    fn check_new_state(
        &self,
        requester: &Requester,
        update: UpdateState,
    ) -> Result<CheckedUpdate, UpdateError> {
        let workloads = self.updates.workloads();
        let restart = update.restart.clone();
        let has_state = update.new_state.is_some();
        let writes_mode = match &workloads.modes {
            Some(modes) => has_state && modes.is_written_by(&update.masks),
            None => false,
        };
        // First, the change. Workloads that failed at the start are tried again.
        let failed = self.updates.failed_at_start(&update.masks);
        let mut change = requested_change(self.view(), update, requester.agent().is_none())?;
        for (name, workload) in failed {
            change.workloads.entry(name).or_insert(Some(workload));
        }
        let checked = workloads.check(change, source_of(requester))?;
        // Then, the restarts: with a new state only of workloads that it changes.
        let revisions = has_state.then_some(&checked.revisions);
        let restarted = self.updates.to_restart(&restart, revisions)?;
        self.check_restart(&restarted, requester)?;
        Ok(CheckedUpdate {
            writes_mode,
            restarted,
            ..checked
        })
    }

    /// Checks that a requester may restart these workloads now.
    fn check_restart(
        &self,
        restarted: &BTreeSet<Name>,
        requester: &Requester,
    ) -> Result<(), UpdateError> {
        for name in restarted {
            let mask = format!("desiredState.workloads.{name}");
            if !self.sessions.rights().may_write(requester, vec![mask]) {
                return Err(UpdateError::Other(format!(
                    "it would also restart '{name}', which this workload must not write"
                )));
            }
            self.updates.check_agent_of(name)?;
            if let Some(number) = self.rollouts.open_update_of(name) {
                return Err(UpdateError::Other(format!(
                    "'{name}' is a part of update {number}, which is open; wait until that has ended, or use 'ank rollback {number}'"
                )));
            }
        }
        Ok(())
    }

    /// Checks an update, gives it to the hooks if there are some, and commits it.
    fn change_state(&mut self, requester: &Requester, key: &RequestKey, content: RequestContent) {
        let _source = log_source(requester.log_source());
        let kept = self.updates.has_hooks().then(|| content.clone()); // To check it again later.
        let checked = match self.check_update(requester, content) {
            Ok(checked) => checked,
            Err(error) => return self.update_done(key, Err(error)),
        };
        if let Some(content) = kept
            && self.updates.start_hooks(&checked)
        {
            return self.admission.begin_hooks(WithHooks {
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

    /// Stops and starts workloads. Hooks do not get the request: for them a stopped workload still
    /// has its agent.
    fn stop_and_start(&mut self, requester: &Requester, key: &RequestKey, request: &StopAndStart) {
        let _source = log_source(requester.log_source());
        let stopped = match self.updates.stopped_after(request, &self.rollouts) {
            Ok(stopped) => stopped,
            Err(error) => return self.update_done(key, Err(error)),
        };
        let mut effects = Effects::default();
        let accepted = self.updates.set_stopped(stopped, self.now(), &mut effects);
        self.apply(effects);
        self.update_done(key, Ok(accepted));
    }

    /// The warning for users about the stored state and stopped workloads, if there is one.
    fn warning(&self) -> Option<String> {
        let stopped = self.updates.stop_warning(self.storage.is_on());
        match (self.storage.warning(), stopped) {
            (Some(storage), Some(stopped)) => Some(format!("{storage}; also, {stopped}")),
            (storage, stopped) => storage.or(stopped),
        }
    }

    /// Commits or refuses the update that the hooks have processed. If the state has changed since
    /// its check, it is checked again and passes the hooks again.
    pub(super) fn hooks_done(&mut self, outcome: HookOutcome) {
        let begin = self.now();
        let Some(WithHooks {
            requester,
            key,
            content,
            checked,
            commits,
        }) = self.admission.end_hooks()
        else {
            log::error!("Ignoring a result of the mutating hooks: no update is waiting for one.");
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
        self.admission.waker().wake_by_ref(); // Others may have waited for the hooks.
    }

    /// Responds to a request that changes the state, and counts its result.
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
            // Agents of Eclipse Ankaios have the same API level, and none of our capabilities.
            let mut version = agent.version.clone();
            if agent.capabilities.prepares && !version.is_empty() {
                version = shown_of_peer(&version);
            }
            let mut fields = vec![
                ("version", Node::text(version)),
                ("connectedAt", Node::Number(connected_at)),
            ];
            if !agent.engine.is_empty() {
                fields.push(("engine", Node::text(agent.engine.as_str())));
            }
            if let Some(expires) = agent.certificate_expires {
                fields.push(("certificateExpires", Node::Number(expires)));
            }
            agents.push((name.to_string(), Node::map(fields)));
        }
        let mut programs = vec![
            ("version", Node::text(SHOWN_VERSION.as_str())),
            ("agents", Node::map(agents)),
        ];
        if let Some(expires) = self.expiry.own() {
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

    /// Notes that an update has its result. If it is older than a failure that has switched the
    /// mode, its own mode does not apply.
    fn older_update_done(&mut self, key: &RequestKey) {
        let mut effects = Effects::default();
        self.updates
            .older_update_done(key, self.now(), &mut effects);
        self.apply(effects);
    }
}

fn source_of(requester: &Requester) -> UpdateSource {
    if requester.agent().is_some() {
        UpdateSource::UpdateOfWorkload
    } else {
        UpdateSource::Update
    }
}

/// Returns whether a request begins or cancels a subscription.
fn is_of_subscription(content: &RequestContent) -> bool {
    match content {
        RequestContent::CompleteState(read) => read.subscribe,
        RequestContent::Logs(_) | RequestContent::LogsCancel | RequestContent::EventsCancel => true,
        RequestContent::UpdateState(_)
        | RequestContent::RollBack(_)
        | RequestContent::StopAndStart(_)
        | RequestContent::Missing => false,
    }
}

/// Checks the id of a request that begins or cancels a subscription: the subscription is found by
/// its id, and belongs to the workload that the id names.
///
/// # Errors
/// The text for its sender.
fn check_subscription_id(requester: &Requester, key: &RequestKey) -> Result<(), String> {
    if key.id.is_empty() {
        return Err("The request id is empty".to_owned());
    }
    if requester.agent().is_some() && requester.workload.is_none() {
        return Err(format!(
            "The request id '{}' does not begin with the name of a workload",
            key.id
        ));
    }
    Ok(())
}

// ---------------------------------------------------------- parts on request

impl ServerLoop {
    /// Adds the parts that `masks` request by name to `state`, the response to a read.
    ///
    /// A part on request is sent only if a mask of the read begins with its name. A read without
    /// masks, a mask that begins with `*`, and events never have it: clients of other
    /// implementations do not know these fields, and unread parts cost nothing. The part `usage` is
    /// added by [`Self::respond_to_usage_read`].
    // [impl->swdd~server-sends-parts-on-request~1]
    fn add_parts_on_request(&self, requester: &Requester, masks: &MaskTree, state: &mut Node) {
        let Node::Map(entries) = state else { return };
        for name in PARTS_ON_REQUEST {
            let wanted = masks.named(name);
            // Workloads can read the modes only: the part `updates` has earlier workloads, which
            // their deny rules do not cover.
            let is_denied = *name != "modes" && requester.agent().is_some();
            if wanted.is_nothing() || is_denied {
                continue;
            }
            let part = match *name {
                "modes" => self.updates.workloads().modes_node(&wanted),
                "timings" => self.updates.timings().read(self.now(), &wanted),
                "history" => self.updates.history().read(&wanted),
                "programs" => wanted.take(self.programs()),
                "updates" => Some(self.read_updates(&wanted)),
                "warning" => match self.warning() {
                    Some(warning) => wanted.take(Node::text(warning)),
                    None => None,
                },
                _ => None,
            };
            if let Some(part) = part {
                entries.insert(*name, part);
            }
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
    fn part_on_request_exists_only_where_a_mask_begins_with_it() {
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
            (&["history.AgentConnected"], false, &[]),
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
