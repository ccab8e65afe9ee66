"""A workload that talks to the cluster with the Python SDK: every call that the SDK offers, once and with its effect.

Runs inside a container; tests/system/control.rs starts it. Usage: sdk_workload.py all | denied. Exit code 0 means
that every assertion held; what failed is in the log of the container.
"""

import base64
import sys
import time
from queue import Empty

from ankaios_sdk import (
    Ankaios,
    AnkaiosLogLevel,
    AnkaiosResponseError,
    CompleteState,
    EventEntry,
    File,
    LogEntry,
    LogsStopResponse,
    Manifest,
    Workload,
    WorkloadStateEnum,
)

# Much longer than anything takes; a loaded machine is slow, not wrong.
LIMIT = 180

PATIENT = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
TALKING = "trap 'exit 0' TERM; echo first; i=0; while true; do sleep 0.2; i=$((i+1)); echo line $i; done"


def config(command):
    return f'image: alpine:latest\ncommandOptions: ["--stop-timeout", "1"]\ncommandArgs: [sh, -c, "{command}"]\n'


def workload(name, command, tag=("owner", "sdk")):
    builder = Workload.builder().workload_name(name).agent_name("agent_A").runtime("podman")
    return builder.restart_policy("NEVER").runtime_config(config(command)).add_tag(*tag).build()


def wait_for(what, condition):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited in vain: {what}")


def instance_of(ankaios, name):
    def find():
        states = ankaios.get_workload_states_for_name(name, timeout=LIMIT).get_as_list()
        return states[0].workload_instance_name if states else None
    return wait_for(f"a state of '{name}'", find)


def take(queue, what):
    try:
        return queue.get(timeout=LIMIT)
    except Empty:
        raise AssertionError(f"waited in vain: {what}") from None


def entries_of(ankaios, instance, are_all, **options):
    """
    A campaign and what came of it, once that is all. The SDK takes entries only after it has returned from the call: on a
    busy machine it loses those that come before.
    """
    for _ in range(10):
        campaign = ankaios.request_logs([instance], timeout=LIMIT, **options)
        entries = []
        try:
            while not are_all(entries):
                entries.append(campaign.queue.get(timeout=6))
            return campaign, entries
        except Empty:
            ankaios.stop_receiving_logs(campaign, timeout=LIMIT)
    raise AssertionError(f"never all of {instance}, {options}")


def workloads(ankaios):
    success = ankaios.apply_workload(workload("talker", TALKING), timeout=LIMIT)
    assert [str(name).startswith("talker.") for name in success.added_workloads] == [True], success
    found = ankaios.get_workload("talker", timeout=LIMIT)
    assert [one.name for one in found] == ["talker"] and found[0].get_tags() == {"owner": "sdk"}, found
    instance = instance_of(ankaios, "talker")
    ankaios.wait_for_workload_to_reach_state(instance, WorkloadStateEnum.RUNNING, timeout=LIMIT)
    state = ankaios.get_execution_state_for_instance_name(instance, timeout=LIMIT)
    assert state.state == WorkloadStateEnum.RUNNING, state

    names = {state.workload_instance_name.workload_name for state in ankaios.get_workload_states(timeout=LIMIT).get_as_list()}
    assert {"talker", "sdk"} <= names, names
    on_agent = ankaios.get_workload_states_on_agent("agent_A", timeout=LIMIT).get_as_list()
    assert {"talker", "sdk"} <= {state.workload_instance_name.workload_name for state in on_agent}
    return instance


def manifests(ankaios):
    manifest = Manifest.from_dict({
        "apiVersion": "v1",
        "workloads": {"extra": {"agent": "agent_A", "runtime": "podman", "runtimeConfig": config(PATIENT)}},
    })
    assert len(ankaios.apply_manifest(manifest, timeout=LIMIT).added_workloads) == 1
    instance = instance_of(ankaios, "extra")
    ankaios.wait_for_workload_to_reach_state(instance, WorkloadStateEnum.RUNNING, timeout=LIMIT)
    assert len(ankaios.delete_manifest(manifest, timeout=LIMIT).deleted_workloads) == 1
    wait_for("'extra' is gone", lambda: not ankaios.get_workload_states_for_name("extra").get_as_list())


def only_configs(answer):
    """This version of the SDK answers a pair of the configs and the time limit."""
    return answer[0] if isinstance(answer, tuple) else answer


def configs(ankaios):
    ankaios.update_configs({"one": "1", "two": ["a", "b"]}, timeout=LIMIT)
    ankaios.add_config("three", {"key": "value"}, timeout=LIMIT)
    assert only_configs(ankaios.get_configs(timeout=LIMIT)) == {"one": "1", "two": ["a", "b"], "three": {"key": "value"}}
    assert only_configs(ankaios.get_config("three", timeout=LIMIT)) == {"three": {"key": "value"}}
    ankaios.delete_config("one", timeout=LIMIT)
    assert sorted(only_configs(ankaios.get_configs(timeout=LIMIT))) == ["three", "two"]
    ankaios.delete_all_configs(timeout=LIMIT)
    assert only_configs(ankaios.get_configs(timeout=LIMIT)) == {}


def modes(ankaios):
    """The config item is that of the server's modes, so writing it switches."""
    def states():
        return [one.execution_state.state for one in ankaios.get_workload_states_for_name("nav", timeout=LIMIT).get_as_list()]

    ankaios.add_config("mode", "park", timeout=LIMIT)
    ankaios.apply_workload(workload("nav", PATIENT, ("modes", "drive")), timeout=LIMIT)
    wait_for("'nav' is outside of the mode", lambda: states() == [WorkloadStateEnum.NOT_SCHEDULED])
    ankaios.add_config("mode", "drive", timeout=LIMIT)
    wait_for("'nav' runs", lambda: states() == [WorkloadStateEnum.RUNNING])
    ankaios.delete_workload("nav", timeout=LIMIT)
    wait_for("'nav' is gone", lambda: not states())
    ankaios.delete_all_configs(timeout=LIMIT)


def agents(ankaios):
    assert list(ankaios.get_agents(timeout=LIMIT)) == ["agent_A"]
    ankaios.set_agent_tags("agent_A", {"place": "roof"}, timeout=LIMIT)
    assert ankaios.get_agent("agent_A", timeout=LIMIT).tags == {"place": "roof"}


def state(ankaios):
    complete = ankaios.get_state(timeout=LIMIT)
    assert isinstance(complete, CompleteState) and complete.get_api_version() == "v1"
    assert {one.name for one in complete.get_workloads()} == {"sdk", "talker"}
    assert [one.name for one in ankaios.get_state(["desiredState.workloads.talker"]).get_workloads()] == ["talker"]


def logs(ankaios, instance):
    campaign = ankaios.request_logs([instance], follow=True, timeout=LIMIT)
    assert [str(name) for name in campaign.accepted_workload_names] == [str(instance)]
    lines = []
    while len(lines) < 5:
        entry = take(campaign.queue, "a line of 'talker'")
        assert isinstance(entry, LogEntry) and entry.workload_instance_name == instance, entry
        lines.append(entry.message)
    numbers = [int(line.removeprefix("line ")) for line in lines if line != "first"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), lines
    ankaios.stop_receiving_logs(campaign, timeout=LIMIT)

    # Without following the end is told.
    ended = lambda entries: entries and isinstance(entries[-1], LogsStopResponse)
    _, entries = entries_of(ankaios, instance, ended, tail=2)
    assert len(entries) in (1, 2, 3), entries


def events(ankaios):
    queue = ankaios.register_event(["desiredState.workloads.*.tags"], timeout=LIMIT)
    first = take(queue, "the state as it is")
    assert isinstance(first, EventEntry) and not first.added_fields, first
    # The SDK takes events only after it has returned from the call before.
    ankaios.apply_workload(workload("event", "exit 0"), timeout=LIMIT)
    event = take(queue, "the event")
    assert event.added_fields == ["desiredState.workloads.event.tags"], event.added_fields
    assert [one.name for one in event.complete_state.get_workloads()] == ["event"]
    ankaios.delete_workload("event", timeout=LIMIT)
    event = take(queue, "the event of the removal")
    assert event.removed_fields == ["desiredState.workloads.event.tags"], event.removed_fields
    ankaios.unregister_event(queue, timeout=LIMIT)


def files_rules_and_dependencies(ankaios):
    """A workload with all that the SDK can give it; what it gets shows in its log."""
    ankaios.add_config("greeting", "hello", timeout=LIMIT)
    builder = Workload.builder().workload_name("full").agent_name("agent_A").runtime("podman").restart_policy("NEVER")
    # The server strips the text, so it would come back without the last line break.
    command = "cat /etc/text /etc/binary; trap 'exit 0' TERM; while true; do sleep 0.1; done"
    builder.runtime_config(config(command).strip())
    builder.add_tag("owner", "sdk").add_dependency("talker", "ADD_COND_RUNNING").add_config("word", "greeting")
    builder.add_allow_state_rule("Read", ["agents"]).add_deny_state_rule("Write", ["desiredState.workloads.*.tags"])
    builder.add_allow_log_rule(["talk*"]).add_deny_log_rule(["secret"])
    builder.add_file(File.from_data("/etc/text", "text says {{word}}\n"))
    builder.add_file(File.from_binary_data("/etc/binary", base64.b64encode(b"binary says so\n").decode()))
    full = builder.build()
    assert len(ankaios.apply_workload(full, timeout=LIMIT).added_workloads) == 1
    [found] = ankaios.get_workload("full", timeout=LIMIT)
    assert found.to_dict() == full.to_dict(), found.to_dict()
    instance = instance_of(ankaios, "full")
    ankaios.wait_for_workload_to_reach_state(instance, WorkloadStateEnum.RUNNING, timeout=LIMIT)
    campaign, entries = entries_of(ankaios, instance, lambda entries: len(entries) == 2, follow=True)
    lines = [entry.message for entry in entries]
    assert lines == ["text says hello", "binary says so"], lines
    # A log that is followed ends with its workload.
    ankaios.delete_workload("full", timeout=LIMIT)
    assert isinstance(take(campaign.queue, "the end of the log"), LogsStopResponse)
    ankaios.stop_receiving_logs(campaign, timeout=LIMIT)
    wait_for("'full' is gone", lambda: not ankaios.get_workload_states_for_name("full").get_as_list())
    ankaios.delete_all_configs(timeout=LIMIT)


class Recorder:
    """The SDK, and which of its methods were called."""

    def __init__(self, ankaios):
        self.ankaios = ankaios
        self.called = set()

    def __getattr__(self, name):
        self.called.add(name)
        return getattr(self.ankaios, name)

    def left_out(self):
        offered = {name for name in dir(Ankaios) if not name.startswith("_") and callable(getattr(Ankaios, name))}
        return offered - self.called


def everything():
    with Ankaios() as connected:
        ankaios = Recorder(connected)
        ankaios.set_logger_level(AnkaiosLogLevel.WARN)
        instance = workloads(ankaios)
        manifests(ankaios)
        configs(ankaios)
        modes(ankaios)
        agents(ankaios)
        state(ankaios)
        logs(ankaios, instance)
        events(ankaios)
        files_rules_and_dependencies(ankaios)
        assert len(ankaios.delete_workload("talker", timeout=LIMIT).deleted_workloads) == 1
        wait_for("'talker' is gone", lambda: not ankaios.get_workload_states_for_name("talker").get_as_list())
        assert not ankaios.left_out(), f"not called: {ankaios.left_out()}"
    # The same container may close the pipes and come again.
    with Ankaios() as again:
        assert list(again.get_agents(timeout=LIMIT)) == ["agent_A"]


def denied():
    with Ankaios() as ankaios:
        assert list(ankaios.get_agents(timeout=LIMIT)) == ["agent_A"]
        for call in (
            lambda: ankaios.get_state(timeout=LIMIT),
            lambda: ankaios.get_workload("sdk", timeout=LIMIT),
            lambda: ankaios.set_agent_tags("agent_A", {}, timeout=LIMIT),
            lambda: ankaios.apply_workload(workload("no", PATIENT), timeout=LIMIT),
            lambda: ankaios.register_event(["desiredState"], timeout=LIMIT),
        ):
            try:
                call()
            except AnkaiosResponseError as error:
                assert "Access denied" in str(error), error
            else:
                raise AssertionError("the call should have been denied")


if __name__ == "__main__":
    {"all": everything, "denied": denied}[sys.argv[1]]()
    print("all assertions held", flush=True)
