//! Updates with mutating hooks: requests that wait for them, requests that do not, and outcomes.

use super::*;
use crate::admission::PENDING_OF_REQUESTER;
use crate::mutating_hooks::HookOutcome;
use ankaios_model::refusal::ErrorResponse;
use ankaios_model::workload::Workload;
use std::sync::Arc;

impl Cluster {
    /// A server whose hooks answer when the test says so.
    fn hooked() -> Self {
        let mut cluster = Self::default();
        cluster.hook();
        cluster
    }

    /// Sends an update of the whole state; its answer comes when the hooks have answered.
    fn send_update(&mut self, commander: PeerId, workloads: &[(&str, &str)]) {
        self.send_request(commander, "update", update(&whole(workloads), &[]));
    }

    /// What the hooks were asked, if anything.
    pub(crate) fn asked(&self) -> Option<WorkloadPlan> {
        self.plans.try_recv().ok()
    }

    pub(super) fn answer(&mut self, outcome: HookOutcome) {
        self.server.on_event(ServerEvent::Hooks(outcome));
        while self.server.serve_pending() {} // As the loop does then.
    }

    /// An update from a new commander whose plan `hook` changes. Answers added and deleted
    /// instances or the error.
    fn update_with(
        &mut self,
        workloads: &[(&str, &str)],
        hook: impl FnOnce(&mut WorkloadPlan),
    ) -> Result<(Vec<String>, Vec<String>), String> {
        let commander = self.commander();
        self.send_update(commander, workloads);
        if let Some(mut plan) = self.asked() {
            let before = plan.clone();
            hook(&mut plan);
            self.answer(Ok((plan != before).then_some(plan)));
        }
        let answer = self.responses(commander).pop();
        self.send(commander, ToServer::Goodbye);
        outcome(answer.expect("an answer"))
    }

    fn agent_in_state(&mut self, part: &str, workload: &str) -> String {
        self.read(&[&format!("{part}.workloads.{workload}.agent")])
    }
}

/// A state with workloads on agents.
fn whole(workloads: &[(&str, &str)]) -> String {
    let line = |(name, agent): &(&str, &str)| {
        format!("{name}: {{agent: {agent}, runtime: podman, runtimeConfig: x}}")
    };
    let lines: Vec<String> = workloads.iter().map(line).collect();
    format!(
        "{{desiredState: {{apiVersion: v1, workloads: {{{}}}}}}}",
        lines.join(", ")
    )
}

fn text(workload: &str, agent: &str) -> String {
    InstanceName::new(workload, "x", agent).to_string()
}

/// What a hook does that moves a workload to another agent.
pub(super) fn move_to(plan: &mut WorkloadPlan, workload: &str, agent: &str) {
    for added in plan
        .added
        .iter_mut()
        .filter(|added| &*added.instance.workload == workload)
    {
        added.instance.agent = agent.into();
        Arc::make_mut(&mut added.workload).agent = agent.into();
    }
}

fn ids(messages: &[FromServer]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| match message {
            FromServer::Response(response) => response.id.as_str(),
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn while_hooks_work_everybody_else_is_served() {
    let mut cluster = Cluster::hooked();
    let (agent, commander) = (cluster.settled_agent("A"), cluster.commander());
    cluster.send_update(commander, &[("web", "A")]);
    assert_eq!(cluster.asked().unwrap().added.len(), 1);
    // Reads show the state before, states are stored and passed on, agents come and go.
    assert_eq!(
        cluster.read(&["desiredState.workloads"]),
        r#"{"desiredState":{"apiVersion":"v1","workloads":{}}}"#
    );
    let other = InstanceName::new("other", "x", "A");
    cluster.report(agent, &[(&other, Phase::Running)]);
    assert_eq!(cluster.phase(&other), Some(Phase::Running));
    let late = cluster.settled_agent("B");
    assert_eq!(
        (cluster.take(commander), cluster.take(agent)),
        (vec![], vec![])
    );
    cluster.answer(Ok(None));
    assert_eq!(ids(&cluster.take(commander)), ["update"]);
    assert!(
        matches!(&cluster.take(agent)[..], [FromServer::UpdateWorkload(plan)] if names(&plan.added) == ["web"])
    );
    assert_eq!(cluster.take(late), []);
}

#[test]
fn pending_updates_pass_the_hooks_in_order() {
    let mut cluster = Cluster::hooked();
    let commanders = [
        cluster.commander(),
        cluster.commander(),
        cluster.commander(),
    ];
    cluster.send_update(commanders[0], &[("a", "A")]);
    cluster.send_update(commanders[1], &[("a", "A"), ("b", "A")]);
    cluster.send_update(commanders[2], &[("b", "A")]);
    let plan = |plan: WorkloadPlan| (names(&plan.added).join(","), plan.deleted.len());
    assert_eq!(cluster.asked().map(plan), Some(("a".to_owned(), 0)));
    assert_eq!(cluster.asked(), None, "one at a time");
    cluster.answer(Ok(None));
    assert_eq!(
        cluster.asked().map(plan),
        Some(("b".to_owned(), 0)),
        "planned against the state after the first"
    );
    cluster.answer(Err(UpdateError::Other("x".to_owned())));
    assert_eq!(
        cluster.asked().map(plan),
        Some(("b".to_owned(), 1)),
        "planned against the state after a refusal"
    );
    cluster.answer(Ok(None));
    assert_eq!(cluster.asked(), None);
    for commander in commanders {
        assert_eq!(ids(&cluster.take(commander)), ["update"]);
    }
    assert_eq!(
        cluster.read(&["desiredState.workloads.*.agent"]),
        r#"{"desiredState":{"apiVersion":"v1","workloads":{"b":{"agent":"A"}}}}"#
    );
}

#[test]
fn responses_to_one_requester_keep_their_order() {
    let rules = "{allowRules: [{type: StateRule, operation: ReadWrite, filterMasks: ['*']}]}";
    let workload =
        format!("{{agent: A, runtime: podman, runtimeConfig: x, controlInterfaceAccess: {rules}}}");
    let asking = format!("apiVersion: v1\nworkloads: {{one: {workload}, two: {workload}}}");
    let mut cluster = Cluster::with_manifest(&asking);
    cluster.hook();
    let agent = cluster.settled_agent("A");
    let read = || read(&["agents"], false);
    let say = |cluster: &mut Cluster, id: &str, content| {
        cluster.send_request(agent, id, content);
    };
    say(
        &mut cluster,
        "one@update",
        update(&whole(&[("a", "B"), ("one", "A"), ("two", "A")]), &[]),
    );
    say(&mut cluster, "one@read", read());
    say(&mut cluster, "two@read", read());
    assert_eq!(ids(&cluster.take(agent)), ["two@read"]);
    // The update takes the rights of both away: their pending requests are denied when they are
    // served.
    say(&mut cluster, "two@update", update(&whole(&[]), &[]));
    cluster.answer(Ok(None));
    let answers = cluster.take(agent);
    let responses = answers
        .iter()
        .filter(|message| matches!(message, FromServer::Response(_)))
        .cloned();
    let responses: Vec<FromServer> = responses.collect();
    assert_eq!(ids(&responses), ["one@update", "one@read", "two@update"]);
    let denied = |response: &FromServer| match response {
        FromServer::Response(Response {
            content: ResponseContent::Error(ErrorResponse { text, .. }),
            ..
        }) => text.contains("denied"),
        _ => false,
    };
    assert_eq!(
        responses.iter().map(denied).collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_eq!(
        cluster.asked().map(|plan| plan.added.len()),
        Some(3),
        "the first update only"
    );
    assert_eq!(cluster.asked(), None);
}

#[test]
fn update_without_workloads_skips_the_hooks_but_not_the_queue() {
    let mut cluster = Cluster::hooked();
    let commander = cluster.commander();
    let configs = "{desiredState: {apiVersion: v1, configs: {k: v}}}";
    assert!(matches!(
        cluster.request(commander, update(configs, &["desiredState.configs"])),
        ResponseContent::UpdateStateSuccess { .. }
    ));
    assert_eq!(cluster.asked(), None);
    cluster.send_update(commander, &[("a", "A")]);
    let other = cluster.commander();
    let content = update(configs, &["desiredState.configs"]);
    cluster.send_request(other, "configs", content);
    assert_eq!(cluster.take(other), []);
    cluster.answer(Ok(None));
    assert_eq!(ids(&cluster.take(other)), ["configs"]);
}

#[test]
fn cancels_are_accepted_when_too_many_requests_wait() {
    let mut cluster = Cluster::hooked();
    let commander = cluster.commander();
    let say = |cluster: &mut Cluster, id: &str, content: RequestContent| {
        cluster.send_request(commander, id, content);
        cluster.take(commander).pop()
    };
    let read = |subscribe| read(&[], subscribe);
    cluster.send_update(commander, &[("a", "A")]);
    assert_eq!(say(&mut cluster, "events", read(true)), None);
    for _ in 0..PENDING_OF_REQUESTER - 1 {
        cluster.send_update(commander, &[("a", "A")]);
    }
    let too_many = "Too many requests wait for mutating hooks; try again later";
    for (content, text) in [
        (read(false), too_many.to_owned()),
        (
            update(&whole(&[("a", "A")]), &[]),
            format!("Update rejected: '{too_many}'"),
        ),
    ] {
        let refused = Response {
            id: "too many".to_owned(),
            content: ResponseContent::Error(text.into()),
        };
        assert_eq!(
            say(&mut cluster, "too many", content),
            Some(FromServer::Response(refused))
        );
    }
    for (content, accepted) in [
        (
            RequestContent::LogsCancel,
            ResponseContent::LogsCancelAccepted,
        ),
        (
            RequestContent::EventsCancel,
            ResponseContent::EventsCancelAccepted,
        ),
    ] {
        let expected = FromServer::Response(Response {
            id: "events".to_owned(),
            content: accepted,
        });
        if let Some(answer) = say(&mut cluster, "events", content) {
            assert_eq!(answer, expected);
        } else {
            // The first cancel made room, so the second one waits like everything else.
            cluster.answer(Ok(None));
            assert!(cluster.take(commander).contains(&expected));
        }
    }
    cluster.answer(Ok(None));
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events),
        "what was cancelled has begun afterwards"
    );
    assert!(cluster.server.admission.is_empty(), "all are answered");
}

#[test]
fn update_of_a_disconnected_requester_is_committed() {
    let mut cluster = Cluster::hooked();
    let commander = cluster.commander();
    cluster.send_update(commander, &[("a", "A")]);
    cluster.send_update(commander, &[("b", "A")]);
    let content = read(&[], true);
    cluster.send_request(commander, "events", content);
    cluster.close(commander);
    cluster.answer(Ok(None));
    cluster.answer(Ok(None));
    assert!(
        cluster
            .server
            .subscriptions
            .has_no(SubscriptionKind::Events)
    );
    assert_eq!(
        cluster.agent_in_state("desiredState", "b"),
        r#"{"desiredState":{"apiVersion":"v1","workloads":{"b":{"agent":"A"}}}}"#
    );
}

#[test]
fn a_refused_update_changes_nothing() {
    let mut cluster = Cluster::hooked();
    let agent = cluster.settled_agent("A");
    let commander = cluster.commander();
    cluster.send_update(commander, &[("a", "A")]);
    let veto = UpdateError::Veto {
        hook: "h".into(),
        reason: "Hook 'h' rejected the change: no".into(),
    };
    cluster.answer(Err(veto));
    let error = ResponseContent::Error(
        "Update rejected by mutating hook 'h': 'Hook 'h' rejected the change: no'".into(),
    );
    assert_eq!(
        cluster.take(commander),
        [FromServer::Response(Response {
            id: "update".to_owned(),
            content: error
        })]
    );
    assert_eq!(cluster.take(agent), []);
    assert!(!cluster.read(&[]).contains("podman"));
}

#[test]
fn the_changed_lists_are_what_agents_get_and_the_answer_names() {
    let mut cluster = Cluster::hooked();
    let (a, b) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    let answer = cluster.update_with(
        &[("stays", "A"), ("moves", "A"), ("dropped", "A")],
        |plan| {
            move_to(plan, "moves", "B");
            plan.added
                .retain(|added| &*added.instance.workload != "dropped");
            let sidecar = Arc::new(Workload::new("B", "podman", "x"));
            plan.added.push(AddedWorkload {
                instance: sidecar.instance_name("sidecar"),
                workload: sidecar,
            });
        },
    );
    assert_eq!(
        answer,
        Ok((
            vec![text("moves", "B"), text("sidecar", "B"), text("stays", "A")],
            vec![]
        ))
    );
    assert_eq!(names(&cluster.one_plan(a).added), ["stays"]);
    assert_eq!(names(&cluster.one_plan(b).added), ["moves", "sidecar"]);
    assert_eq!(
        cluster.phase(&InstanceName::new("moves", "x", "B")),
        Some(Phase::PendingInitial)
    );
    assert_eq!(cluster.phase(&InstanceName::new("moves", "x", "A")), None);
    // The desired state is as users wrote it, the effective one as agents run it.
    assert!(
        cluster
            .agent_in_state("desiredState", "moves")
            .contains(r#""agent":"A""#)
    );
    assert!(
        cluster
            .agent_in_state("effectiveState", "moves")
            .contains(r#""agent":"B""#)
    );
    assert!(
        cluster
            .agent_in_state("desiredState", "dropped")
            .contains(r#""agent":"A""#)
    );
    assert!(
        !cluster
            .agent_in_state("effectiveState", "dropped")
            .contains("dropped")
    );
}

#[test]
fn an_unrelated_update_keeps_what_hooks_made_of_earlier_ones() {
    let mut cluster = Cluster::hooked();
    cluster
        .update_with(&[("moves", "A"), ("dropped", "A")], |plan| {
            move_to(plan, "moves", "B");
            plan.added
                .retain(|added| &*added.instance.workload != "dropped");
        })
        .unwrap();
    let before = cluster.read(&["effectiveState.workloads.*.agent"]);
    let answer = cluster.update_with(&[("moves", "A"), ("dropped", "A"), ("new", "A")], |_| ());
    assert_eq!(answer, Ok((vec![text("new", "A")], vec![])));
    let after = cluster.read(&["effectiveState.workloads.*.agent"]);
    assert_eq!(after.replace(r#","new":{"agent":"A"}"#, ""), before);
    // The agents of a restarted cluster get the same.
    let b = cluster.agent("B");
    assert!(
        matches!(cluster.take(b).last(), Some(FromServer::ServerHello(added)) if names(added) == ["moves"])
    );
    // Applying the same again is no change at all, although the effective state differs.
    let same = cluster.update_with(&[("moves", "A"), ("dropped", "A"), ("new", "A")], |_| {
        panic!("hooks are not asked")
    });
    assert_eq!(same, Ok((vec![], vec![])));
}

#[test]
fn a_workload_that_a_hook_moved_is_deleted_where_it_runs() {
    let mut cluster = Cluster::hooked();
    let (a, b) = (cluster.settled_agent("A"), cluster.settled_agent("B"));
    cluster
        .update_with(&[("moves", "A")], |plan| move_to(plan, "moves", "B"))
        .unwrap();
    cluster.take_all();
    let answer = cluster.update_with(&[], |plan| {
        assert_eq!(
            plan.deleted[0].instance,
            InstanceName::new("moves", "x", "B")
        );
    });
    assert_eq!(answer, Ok((vec![], vec![text("moves", "B")])));
    assert_eq!(cluster.take(a), []);
    assert!(
        matches!(&cluster.take(b)[..], [FromServer::UpdateWorkload(plan)] if plan.deleted.len() == 1)
    );
}

#[test]
fn a_workload_that_a_hook_does_not_let_go_stays() {
    let mut cluster = Cluster::hooked();
    let agent = cluster.settled_agent("A");
    cluster.update_with(&[("a", "A")], |_| ()).unwrap();
    cluster.take_all();
    assert_eq!(
        cluster.update_with(&[], |plan| plan.deleted.clear()),
        Ok((vec![], vec![]))
    );
    assert_eq!(cluster.take(agent), []);
    assert!(
        cluster
            .agent_in_state("effectiveState", "a")
            .contains(r#""agent":"A""#)
    );
    assert!(
        !cluster
            .agent_in_state("desiredState", "a")
            .contains(r#""agent""#)
    );
    // When it comes back in another form, the instance that stayed is replaced, not doubled.
    let answer = cluster.update_with(&[("a", "B")], |_| ());
    assert_eq!(answer, Ok((vec![text("a", "B")], vec![text("a", "A")])));
}

#[test]
fn a_hook_cannot_leave_two_instances_of_one_workload() {
    let mut cluster = Cluster::hooked();
    cluster.update_with(&[("a", "A")], |_| ()).unwrap();
    // The delete of the old instance is forgotten; the same sidecar is added again and again.
    let answer = cluster.update_with(&[("a", "B")], |plan| plan.deleted.clear());
    assert_eq!(answer, Ok((vec![text("a", "B")], vec![text("a", "A")])));
    let sidecar = |plan: &mut WorkloadPlan| {
        let workload = Arc::new(Workload::new("A", "podman", "x"));
        plan.added.push(AddedWorkload {
            instance: workload.instance_name("sidecar"),
            workload,
        });
    };
    let answer = cluster.update_with(&[("a", "C")], sidecar);
    assert_eq!(
        answer,
        Ok((
            vec![text("a", "C"), text("sidecar", "A")],
            vec![text("a", "B")]
        ))
    );
    let answer = cluster.update_with(&[("a", "D")], sidecar);
    assert_eq!(answer, Ok((vec![text("a", "D")], vec![text("a", "C")])));
}

#[test]
fn output_that_cannot_be_carried_out_refuses_the_update() {
    type Hook = fn(&mut WorkloadPlan);
    let rows: [(&str, Hook); 6] = [
        (
            "Unsupported workload name 'a.b'. Expected to have characters in [a-zA-Z0-9_-].",
            |plan| {
                plan.added[0].instance.workload = "a.b".into();
            },
        ),
        ("Unsupported agent name 'A/B'.", |plan| {
            move_to(plan, "a", "A/B")
        }),
        (
            "Workload 'a' is for agent 'A', but its instance name is for agent 'B'.",
            |plan| {
                plan.added[0].instance.agent = "B".into();
            },
        ),
        ("Unsupported id '../x' of workload 'a'.", |plan| {
            plan.added[0].instance.id = "../x".into()
        }),
        ("Workload 'a' is added twice.", |plan| {
            let again = plan.added[0].clone();
            plan.added.push(again);
        }),
        ("workload dependency 'a' is part of a cycle.", |plan| {
            let condition = ankaios_model::workload::AddCondition::Running;
            Arc::make_mut(&mut plan.added[0].workload)
                .dependencies
                .insert("old".into(), condition);
            let mut old = Workload::new("A", "podman", "x");
            old.dependencies.insert("a".into(), condition);
            plan.added.push(AddedWorkload {
                instance: old.instance_name("old"),
                workload: Arc::new(old),
            });
        }),
    ];
    for (expected, hook) in rows {
        let mut cluster = Cluster::hooked();
        cluster.update_with(&[("old", "A")], |_| ()).unwrap();
        let before = cluster.read(&[]);
        let error = cluster
            .update_with(&[("old", "A"), ("a", "A")], hook)
            .unwrap_err();
        assert!(
            error.starts_with("Update rejected: '") && error.contains(expected),
            "{error}"
        );
        assert_eq!(cluster.read(&[]), before, "{expected}");
    }
}

#[test]
fn a_cyclic_update_is_refused_before_any_hook_is_asked() {
    let mut cluster = Cluster::hooked();
    let commander = cluster.commander();
    let cyclic = "{desiredState: {apiVersion: v1, workloads: {a: {agent: A, runtime: podman, runtimeConfig: x, \
                  dependencies: {b: ADD_COND_RUNNING}}, b: {agent: A, runtime: podman, runtimeConfig: x, \
                  dependencies: {a: ADD_COND_SUCCEEDED}}}}}";
    for masks in [vec![], vec!["desiredState.workloads"]] {
        let answer = cluster.request(commander, update(cyclic, &masks));
        let expected =
            "Update rejected: 'workload dependency 'a' is part of a cycle. It is: a -> b -> a'";
        assert_eq!(answer, ResponseContent::Error(expected.into()), "{masks:?}");
        assert_eq!(cluster.asked(), None, "{masks:?}");
    }
    // At the start neither: these hooks would never answer.
    let manifest = "{apiVersion: v1, workloads: {a: {agent: A, runtime: podman, runtimeConfig: x, \
                    dependencies: {a: ADD_COND_RUNNING}}}}";
    let error = cluster.server.start_with(desired(manifest)).unwrap_err();
    assert_eq!(
        (error, cluster.asked()),
        (UpdateError::cycle(&["a".into()]), None)
    );
}

#[test]
fn a_delete_of_what_does_not_exist_is_ignored() {
    let mut cluster = Cluster::hooked();
    let answer = cluster.update_with(&[("a", "A")], |plan| {
        let instance = InstanceName::new("ghost", "x", "A");
        plan.deleted.push(ankaios_model::messages::DeletedWorkload {
            instance,
            dependencies: [].into(),
        });
    });
    assert_eq!(answer, Ok((vec![text("a", "A")], vec![])));
}

#[test]
fn an_outcome_that_nobody_waits_for_is_ignored() {
    let mut cluster = Cluster::hooked();
    cluster.answer(Ok(Some(WorkloadPlan::default())));
    assert_eq!(
        cluster.update_with(&[("a", "A")], |_| ()).unwrap().0,
        [text("a", "A")]
    );
}
